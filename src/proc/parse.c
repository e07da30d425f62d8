/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Texts of /proc. Lines and words are cut off a struct text, which only ever shrinks, so
 * no function can read past the bytes it was given, and each ends after one pass.
 */
#include "proc/parse.h"

#include <limits.h>
#include <string.h>

bool text_line(struct text *t, struct text *linep)
{
	const char *nl;

	if (t->p >= t->end)
		return false;
	nl = memchr(t->p, '\n', text_len(*t));
	linep->p = t->p;
	linep->end = nl ? nl : t->end;
	t->p = nl ? nl + 1 : t->end;
	return true;
}

static bool blank(char c)
{
	return c == ' ' || c == '\t';
}

bool text_word(struct text *t, struct text *wordp)
{
	while (t->p < t->end && blank(*t->p))
		t->p++;
	if (t->p >= t->end)
		return false;
	wordp->p = t->p;
	while (t->p < t->end && !blank(*t->p))
		t->p++;
	wordp->end = t->p;
	return true;
}

bool text_u64(struct text t, unsigned int base, uint64_t *valuep)
{
	uint64_t v = 0;

	if (t.p >= t.end)
		return false;
	for (; t.p < t.end; t.p++) {
		char c = *t.p;
		unsigned int d;

		if (c >= '0' && c <= '9')
			d = (unsigned int)(c - '0');
		else if (c >= 'a' && c <= 'f')
			d = (unsigned int)(c - 'a') + 10;
		else if (c >= 'A' && c <= 'F')
			d = (unsigned int)(c - 'A') + 10;
		else
			return false;
		if (d >= base || __builtin_mul_overflow(v, base, &v) ||
		    __builtin_add_overflow(v, d, &v))
			return false;
	}
	*valuep = v;
	return true;
}

bool text_equal(struct text t, const char *s)
{
	size_t n = strlen(s);

	return text_len(t) == n && (n == 0 || memcmp(t.p, s, n) == 0);
}

bool text_begins(struct text t, const char *s)
{
	size_t n = strlen(s);

	return text_len(t) >= n && (n == 0 || memcmp(t.p, s, n) == 0);
}

bool text_ends(struct text t, const char *s)
{
	size_t n = strlen(s);

	return text_len(t) >= n && (n == 0 || memcmp(t.end - n, s, n) == 0);
}

struct text text_basename(struct text t)
{
	const char *slash = t.p < t.end ? memrchr(t.p, '/', text_len(t)) : NULL;

	if (slash)
		t.p = slash + 1;
	return t;
}

static bool word_u64(struct text *t, unsigned int base, uint64_t *valuep)
{
	struct text word;

	return text_word(t, &word) && text_u64(word, base, valuep);
}

static bool word_id(struct text *t, uint32_t *idp)
{
	uint64_t v;

	if (!word_u64(t, 10, &v) || v > UINT32_MAX)
		return false;
	*idp = (uint32_t)v;
	return true;
}

bool parse_stat(struct text t, struct parse_stat *out)
{
	const char *open, *close;
	struct text word;
	unsigned int field;

	if (t.p >= t.end)
		return false;
	/* the name may hold anything: it ends at the last parenthesis of the file */
	open = memchr(t.p, '(', text_len(t));
	close = memrchr(t.p, ')', text_len(t));
	if (!open || !close || close < open)
		return false;
	*out = (struct parse_stat){ .comm = { open + 1, close } };
	t.p = close + 1;
	while (t.p < t.end && t.end[-1] == '\n')
		t.end--;
	for (field = 3; text_word(&t, &word); field++) {
		uint64_t *vp = field == 4    ? &out->parent
			       : field == 22 ? &out->start
			       : field == 26 ? &out->start_code
			       : field == 28 ? &out->start_stack
					     : NULL;

		if (field == 3)
			out->state = *word.p;
		if (vp && !text_u64(word, 10, vp))
			return false;
		if (field == 28)
			return true;
	}
	return false;
}

bool parse_status(struct text t, struct parse_status *out)
{
	bool uids = false, gids = false;
	struct text line, key;

	memset(out, 0, sizeof(*out));
	while (text_line(&t, &line)) {
		if (!text_word(&line, &key))
			continue;
		if (text_equal(key, "Uid:")) {
			uids = word_id(&line, &out->uid) && word_id(&line, &out->euid) &&
			       word_id(&line, &out->suid) && word_id(&line, &out->fsuid);
		} else if (text_equal(key, "Gid:")) {
			gids = word_id(&line, &out->gid) && word_id(&line, &out->egid) &&
			       word_id(&line, &out->sgid) && word_id(&line, &out->fsgid);
		} else if (text_equal(key, "Groups:")) {
			while (out->n_groups < PARSE_MAX_GROUPS &&
			       word_id(&line, &out->groups[out->n_groups]))
				out->n_groups++;
		} else if (text_equal(key, "NSpid:")) {
			uint32_t pid = 0;

			while (word_id(&line, &pid))
				;
			out->inner_pid = pid <= INT_MAX ? (pid_t)pid : 0;
		}
	}
	return uids && gids;
}

bool parse_environ(struct text t, const char *name, struct text *valuep)
{
	size_t n = strlen(name);

	while (t.p < t.end) {
		const char *nul = memchr(t.p, '\0', text_len(t));
		struct text entry = { t.p, nul ? nul : t.end };

		if (text_len(entry) > n && entry.p[n] == '=' && memcmp(entry.p, name, n) == 0) {
			valuep->p = entry.p + n + 1;
			valuep->end = entry.end;
			return true;
		}
		t.p = nul ? nul + 1 : t.end;
	}
	return false;
}

bool parse_timens_offsets(struct text t, int64_t *monotonic_nsp, int64_t *boottime_nsp)
{
	struct text line, clock, word;

	*monotonic_nsp = *boottime_nsp = 0;
	while (text_line(&t, &line)) {
		uint64_t sec, nsec;
		bool negative;
		int64_t ns;

		if (!text_word(&line, &clock) || !text_word(&line, &word))
			return false;
		negative = *word.p == '-';
		if (negative)
			word.p++;
		/* the kernel takes at most KTIME_SEC_MAX seconds, and always nsec >= 0 */
		if (!text_u64(word, 10, &sec) || !word_u64(&line, 10, &nsec) ||
		    sec > INT64_MAX / 1000000000 - 1 || nsec >= 1000000000)
			return false;
		ns = (int64_t)sec * 1000000000;
		ns = (negative ? -ns : ns) + (int64_t)nsec;
		/* the clock is a number on kernels before 5.7 */
		if (text_equal(clock, "monotonic") || text_equal(clock, "1"))
			*monotonic_nsp = ns;
		else if (text_equal(clock, "boottime") || text_equal(clock, "7"))
			*boottime_nsp = ns;
	}
	return true;
}

bool parse_id_map_root(struct text t, uint32_t *idp)
{
	struct text line;
	uint32_t inside, outside, count;

	while (text_line(&t, &line)) {
		if (!word_id(&line, &inside) || !word_id(&line, &outside) ||
		    !word_id(&line, &count))
			return false;
		if (inside == 0 && count > 0) {
			*idp = outside;
			return true;
		}
	}
	return false;
}

static bool cut_at(struct text *t, char c, struct text *headp)
{
	const char *at = t->p < t->end ? memchr(t->p, c, text_len(*t)) : NULL;

	if (!at)
		return false;
	headp->p = t->p;
	headp->end = at;
	t->p = at + 1;
	return true;
}

void parse_cgroup(struct text t, struct text *v2p, struct text *v1_memoryp)
{
	struct text line, id, controllers;

	*v2p = *v1_memoryp = (struct text){ NULL, NULL };
	while (text_line(&t, &line)) {
		/* "id:controllers:path"; the path may hold colons, a named v1 tree "name=x" */
		if (!cut_at(&line, ':', &id) || !cut_at(&line, ':', &controllers))
			continue;
		if (text_equal(id, "0") && text_len(controllers) == 0)
			*v2p = line;
		else if (parse_has_option(controllers, "memory"))
			*v1_memoryp = line;
	}
}

bool parse_mapping(struct text line, struct parse_mapping *out)
{
	struct text range, start, perms, device;

	*out = (struct parse_mapping){ 0 };
	if (!text_word(&line, &range) || !cut_at(&range, '-', &start) ||
	    !text_u64(start, 16, &out->start) || !text_u64(range, 16, &out->end) ||
	    out->end < out->start)
		return false;
	if (!text_word(&line, &perms) || text_len(perms) != 4)
		return false;
	memcpy(out->perms, perms.p, 4);
	if (!word_u64(&line, 16, &out->offset) || !text_word(&line, &device) ||
	    !word_u64(&line, 10, &out->inode))
		return false;
	while (line.p < line.end && *line.p == ' ')
		line.p++;
	out->path = line;
	return true;
}

bool parse_mount(struct text line, struct parse_mount *out)
{
	struct text skip;
	int i;

	/* id, parent, major:minor, root, mount point, options, tags..., -, type, source, super */
	for (i = 0; i < 3; i++) {
		if (!text_word(&line, &skip))
			return false;
	}
	if (!text_word(&line, &out->root) || !text_word(&line, &out->mount_point))
		return false;
	do {
		if (!text_word(&line, &skip))
			return false;
	} while (!text_equal(skip, "-"));
	return text_word(&line, &out->type) && text_word(&line, &skip) &&
	       text_word(&line, &out->super_options);
}

static bool octal(char c)
{
	return c >= '0' && c <= '7';
}

ssize_t parse_unescape(struct text t, char *out, size_t size)
{
	size_t n = 0;

	while (t.p < t.end) {
		char c = *t.p++;

		if (c == '\\' && text_len(t) >= 3 && octal(t.p[0]) && octal(t.p[1]) &&
		    octal(t.p[2])) {
			c = (char)((t.p[0] - '0') << 6 | (t.p[1] - '0') << 3 | (t.p[2] - '0'));
			t.p += 3;
		}
		if (c == '\0' || n + 1 >= size)
			return -1;
		out[n++] = c;
	}
	if (n >= size)
		return -1;
	out[n] = '\0';
	return (ssize_t)n;
}

bool parse_has_option(struct text options, const char *word)
{
	struct text head;

	while (cut_at(&options, ',', &head)) {
		if (text_equal(head, word))
			return true;
	}
	return text_equal(options, word);
}

bool parse_unix_socket(struct text line, struct parse_unix_socket *out)
{
	/* Num: RefCount Protocol Flags Type St Inode Path; net/unix/af_unix.c */
	const uint64_t accepting = 1u << 16; /* __SO_ACCEPTCON */
	struct text skip;
	uint64_t flags, inode;
	int i;

	for (i = 0; i < 3; i++) {
		if (!text_word(&line, &skip))
			return false;
	}
	if (!word_u64(&line, 16, &flags) || !text_word(&line, &skip) || !text_word(&line, &skip) ||
	    !word_u64(&line, 10, &inode))
		return false;
	/* one blank, then the path up to the end of the line */
	if (text_len(line) < 2)
		return false;
	line.p++;
	out->listening = flags & accepting;
	out->path = line;
	return true;
}

bool parse_key(struct text t, const char *key, uint64_t *valuep)
{
	struct text line, word, unit;

	while (text_line(&t, &line)) {
		if (!text_word(&line, &word))
			continue;
		if (text_ends(word, ":"))
			word.end--;
		if (!text_equal(word, key))
			continue;
		if (!word_u64(&line, 10, valuep))
			return false;
		if (text_word(&line, &unit) && text_equal(unit, "kB"))
			return !__builtin_mul_overflow(*valuep, 1024u, valuep);
		return true;
	}
	return false;
}

bool parse_socket_name(struct text name, pid_t pid, uint64_t *keyp)
{
	static const char prefix[] = "dotnet-diagnostic-", suffix[] = "-socket";
	struct text head;
	uint64_t n;

	if (!text_begins(name, prefix) || !text_ends(name, suffix) ||
	    text_len(name) <= strlen(prefix) + strlen(suffix))
		return false;
	name.p += strlen(prefix);
	name.end -= strlen(suffix);
	return cut_at(&name, '-', &head) && text_u64(head, 10, &n) && n == (uint64_t)pid &&
	       text_u64(name, 10, keyp);
}
