/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text of profilers: see stacks.h.
 *
 * What a line is, is told by its form alone; what its address is (a leaf or a return address), by
 * the line before. Nothing is kept but that and the sample under way, so memory does not depend on
 * the text, and no line costs more than a few passes over it.
 *
 * The first line of a sample begins with the comm, up to 15 bytes that the process chose: they may
 * look like a pid and a time. The real ones follow. Where more than one place could be them, the
 * sample has no pid, and so its frames no names: a wrong name would be worse.
 */
#include "query/stacks.h"

#include <string.h>

#include "base/caps.h"
#include "base/util.h"

/* The pid begins behind comm (perf pads it to 16) and blanks (it pads the pid to 7). */
#define PID_LAST_START 24u

/* No process has code below (vm.mmap_min_addr): small numbers are none. */
#define LOWEST 0x10000u

/* -- small readers -------------------------------------------------------------------- */

struct text {
	const char *s;
	size_t len, at;
};

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static bool is_blank(char c)
{
	return c == ' ' || c == '\t';
}

static int hex_value(char c)
{
	if (is_digit(c))
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

static void skip_blanks(struct text *t)
{
	while (t->at < t->len && is_blank(t->s[t->at]))
		t->at++;
}

static bool take(struct text *t, const char *word)
{
	size_t n = strlen(word);

	if (t->len - t->at < n || memcmp(t->s + t->at, word, n) != 0)
		return false;
	t->at += n;
	return true;
}

/* 1 to 16 digits; more are no address. */
static bool take_hex(struct text *t, uint64_t *vp)
{
	size_t from = t->at;

	*vp = 0;
	while (t->at < t->len && hex_value(t->s[t->at]) >= 0) {
		if (t->at - from == 16)
			return false;
		*vp = *vp << 4 | (uint64_t)hex_value(t->s[t->at++]);
	}
	return t->at > from;
}

/* Decimal, at most max. */
static bool take_number(struct text *t, uint64_t max, uint64_t *vp)
{
	size_t from = t->at;

	*vp = 0;
	while (t->at < t->len && is_digit(t->s[t->at])) {
		*vp = 10 * *vp + (uint64_t)(t->s[t->at++] - '0');
		if (*vp > max)
			return false;
	}
	return t->at > from;
}

static bool at_end(const struct text *t)
{
	return t->at == t->len;
}

/* -- perf: the first line of a sample ------------------------------------------------- */

struct head {
	uint64_t pid, time;
	bool pid_only;
	size_t end; /* behind the time's colon */
};

/* "secs.usecs:" or "secs.nsecs:" */
static bool take_time(struct text *t, uint64_t *nsp)
{
	uint64_t secs, part;
	size_t from;

	if (!take_number(t, UINT32_MAX, &secs) || !take(t, "."))
		return false;
	from = t->at;
	if (!take_number(t, 999999999, &part) || (t->at - from != 6 && t->at - from != 9))
		return false;
	if (t->at - from == 6)
		part *= 1000;
	*nsp = secs * SEC_NS(1) + part;
	return take(t, ":");
}

/* "pid[/tid] [[cpu]] secs.usecs:" with the pid at t. */
static bool take_head(struct text *t, struct head *head)
{
	uint64_t v;

	if (!take_number(t, INT32_MAX, &head->pid))
		return false;
	head->pid_only = !take(t, "/");
	if (!head->pid_only && !take_number(t, INT32_MAX, &v))
		return false;
	if (at_end(t) || !is_blank(t->s[t->at]))
		return false;
	skip_blanks(t);
	if (take(t, "[")) {
		if (!take_number(t, UINT32_MAX, &v) || !take(t, "]"))
			return false;
		skip_blanks(t);
	}
	if (!take_time(t, &head->time))
		return false;
	head->end = t->at;
	return true;
}

/* How many places of the line could be it (2: more than one); *head is the first of them. */
static unsigned int find_head(const char *line, size_t len, struct head *head)
{
	struct head other;
	unsigned int n = 0;
	size_t i;

	if (len && line[0] == '\t') /* a frame: its symbol can look like one */
		return 0;
	for (i = 0; i < len && i <= PID_LAST_START && n < 2; i++) {
		struct text t = { .s = line, .len = len, .at = i };

		if (is_digit(line[i]) && (i == 0 || is_blank(line[i - 1])) &&
		    take_head(&t, n ? &other : head))
			n++;
	}
	return n;
}

/* -- perf: mappings ------------------------------------------------------------------- */

/* "0x7f..(0x1000) @ 0x2000 ...]: r-xp PATH", behind "[" */
static bool take_mapping(struct text *t, struct stacks_mapping *m)
{
	const char *end;

	if (!take(t, "0x") || !take_hex(t, &m->start) || !take(t, "(0x") || !take_hex(t, &m->len) ||
	    !take(t, ") @ "))
		return false;
	(void)take(t, "0x"); /* not before 0 */
	if (!take_hex(t, &m->offset))
		return false;
	end = memmem(t->s + t->at, t->len - t->at, "]: ", 3);
	if (!end)
		return false;
	t->at = (size_t)(end + 3 - t->s);
	if (t->len - t->at < 6 || t->s[t->at + 4] != ' ')
		return false;
	m->executable = t->s[t->at + 2] == 'x';
	m->path = t->s + t->at + 5;
	m->path_len = t->len - t->at - 5;
	return true;
}

static bool parse_mapping(const struct stacks *s, struct stacks_mapping *m)
{
	struct text t = { .s = s->line, .len = s->len, .at = s->at };
	uint64_t pid, tid;

	skip_blanks(&t);
	if (!take(&t, "PERF_RECORD_MMAP2 ") || !take_number(&t, INT32_MAX, &pid) ||
	    !take(&t, "/") || !take_number(&t, INT32_MAX, &tid) || !take(&t, ": ["))
		return false;
	m->pid = (pid_t)pid;
	return take_mapping(&t, m);
}

void stacks_get_mapping(const struct stacks *s, struct stacks_mapping *m)
{
	if (!parse_mapping(s, m))
		*m = (struct stacks_mapping){ 0 };
}

/* -- addresses ------------------------------------------------------------------------ */

/* "[unknown]" at t, and " (PATH)" up to the line's end if it is there. */
static bool take_unknown(struct text *t, struct stacks_address *a)
{
	a->from = t->at;
	if (!take(t, "[unknown]"))
		return false;
	a->to = t->at;
	a->form = STACKS_PERF;
	if (at_end(t))
		return true;
	if (!take(t, " ("))
		return is_blank(t->s[t->at]);
	if (t->s[t->len - 1] != ')')
		return true;
	a->path = t->s + t->at;
	a->path_len = t->len - 1 - t->at;
	if (a->path_len == 9 && memcmp(a->path, "[unknown]", 9) == 0)
		a->path_len = 0;
	t->at = t->len;
	return true;
}

/* "0x7f..", the line's own address once more, and perhaps " ([unknown])". */
static bool take_again(struct text *t, struct stacks_address *a)
{
	uint64_t addr;

	a->from = t->at;
	if (!take(t, "0x") || !take_hex(t, &addr) || addr != a->addr)
		return false;
	a->form = take(t, " ([unknown])") ? STACKS_UNKNOWN : STACKS_BPFTRACE;
	a->to = t->at;
	return at_end(t);
}

/*
 * The frame of a line that has nothing else: "\t7f.. [unknown] (/path)", "\t7f.. 0x7f..
 * ([unknown])", "    0x7f..", "7f..". False if it has a name, or is none; addr may be set even so.
 */
static bool frame_address(const struct stacks *s, struct stacks_address *a)
{
	struct text t = { .s = s->line, .len = s->len };
	bool prefix, found = false;

	*a = (struct stacks_address){ .caller = !s->leaf };
	skip_blanks(&t);
	a->from = t.at;
	prefix = take(&t, "0x");
	if (!take_hex(&t, &a->addr))
		return false;
	a->to = t.at;
	a->form = STACKS_BPFTRACE;
	if (at_end(&t)) {
		found = prefix || a->from == 0;
	} else if (!prefix && take(&t, " ")) {
		struct text u = t;

		found = take_unknown(&t, a) || take_again(&u, a);
		a->is_offset = a->path_len;
	}
	return found;
}

/* -- lines ---------------------------------------------------------------------------- */

/* A line of nothing but hex digits, as many as a user's address may have. */
static bool is_raw(const char *line, size_t len)
{
	struct text t = { .s = line, .len = len };
	uint64_t addr;

	return len >= 8 && take_hex(&t, &addr) && at_end(&t);
}

/* Lines of perf's header that tell of the clock. */
static void take_clock(struct stacks *s)
{
	struct text t = { .s = s->line, .len = s->len };

	if (!take(&t, "# clockid: "))
		return;
	s->clock = take(&t, "monotonic (1)") ? STACKS_CLOCK_MONO : STACKS_CLOCK_OTHER;
}

static enum stacks_kind begin_sample(struct stacks *s, const struct head *head, unsigned int n)
{
	struct stacks_mapping m;

	s->in_sample = true;
	s->has_pid = n == 1;
	s->pid = n == 1 ? (pid_t)head->pid : 0;
	s->pid_only = head->pid_only;
	s->time = n == 1 ? head->time : 0;
	s->leaf = true;
	s->at = head->end;
	return n == 1 && parse_mapping(s, &m) ? STACKS_MAPPING : STACKS_SAMPLE;
}

enum stacks_kind stacks_line(struct stacks *s, const char *line, size_t len)
{
	enum stacks_kind before = s->kind;
	struct head head = { 0 };
	unsigned int n;

	s->line = line;
	s->len = len;
	s->at = 0;
	s->kind = STACKS_OTHER;
	n = find_head(line, len, &head);
	if (n) {
		s->kind = begin_sample(s, &head, n);
	} else if (len && line[0] == '#') {
		take_clock(s);
	} else if ((len && is_blank(line[0])) || is_raw(line, len)) {
		s->kind = STACKS_FRAME;
		s->leaf = before != STACKS_FRAME || s->was_kernel;
		s->has_frame = frame_address(s, &s->frame);
		s->was_kernel = s->frame.addr >> 63;
	} else {
		s->in_sample = s->in_sample && len; /* an empty line ends one */
	}
	if (s->kind != STACKS_FRAME)
		s->was_kernel = false;
	return s->kind;
}

void stacks_skip(struct stacks *s)
{
	s->line = "";
	s->len = s->at = 0;
	s->kind = STACKS_OTHER;
	s->in_sample = s->was_kernel = false;
}

/* -- what is in it ---------------------------------------------------------------------- */

/* The address at the end of perf's only line of a sample: ".. 7f.. [unknown] (/path)" */
static bool sample_address(struct stacks *s, struct stacks_address *a)
{
	const char *p = s->line + s->at, *end = s->line + s->len;

	while ((p = memmem(p, (size_t)(end - p), " [unknown]", 10))) {
		struct text t = { .s = s->line, .len = s->len, .at = (size_t)(p - s->line) };

		while (t.at > s->at && hex_value(t.s[t.at - 1]) >= 0)
			t.at--;
		if (t.at > s->at && is_blank(t.s[t.at - 1]) && take_hex(&t, &a->addr) &&
		    take(&t, " ") && take_unknown(&t, a))
			return true;
		p++;
	}
	return false;
}

/* Could it be part of a longer word, or of "name+0x.."? */
static bool is_word(char c)
{
	return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
	       c == '+';
}

/* The next 0x.. anywhere. */
static bool bare_address(struct stacks *s, struct stacks_address *a)
{
	const char *p = s->line + s->at, *end = s->line + s->len;

	for (; (p = memmem(p, (size_t)(end - p), "0x", 2)); p++) {
		struct text t = { .s = s->line, .len = s->len, .at = (size_t)(p - s->line) };

		a->from = t.at;
		(void)take(&t, "0x");
		if ((p > s->line && is_word(p[-1])) || !take_hex(&t, &a->addr) ||
		    (!at_end(&t) && is_word(t.s[t.at])) || a->addr < LOWEST)
			continue;
		a->to = s->at = t.at;
		a->form = STACKS_BARE;
		return true;
	}
	return false;
}

bool stacks_next(struct stacks *s, struct stacks_address *a)
{
	*a = (struct stacks_address){ 0 };
	if (s->kind == STACKS_FRAME && s->has_frame && s->at == 0) {
		*a = s->frame;
		s->at = s->len;
		return true;
	}
	if (s->kind == STACKS_SAMPLE && sample_address(s, a)) {
		s->at = s->len;
		return true;
	}
	*a = (struct stacks_address){ 0 };
	return s->kind != STACKS_MAPPING && bare_address(s, a);
}
