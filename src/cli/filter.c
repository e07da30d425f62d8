/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clrsym filter: text in, text out, with names in place of raw addresses.
 *
 * All lines that are there at once are looked through (query/stacks.h), their addresses are asked
 * about together, and then the text goes out, so neither a live stream waits nor does a file of a
 * million lines take a million round trips. What is not understood, or has no answer, goes out
 * byte for byte as it came, and so does everything once the answers have failed.
 *
 * perf tells the time of each sample, and an address is named by what was there then, if that time
 * is known to be CLOCK_MONOTONIC. If it is not, or there is none (bpftrace), the last known state
 * answers. A method may be so new that it is not known yet: then the question is held for a
 * moment, but never more than once in RETRY_NS, as most addresses without a name never get one.
 */
#include "cli/cli.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"
#include "cli/answer.h"
#include "cli/lines.h"
#include "cli/offsets.h"
#include "query/stacks.h"

#define RETRY_NS SEC_NS(2)
/* Text is written when so much has gathered. */
#define OUT_BYTES KIB(256)
/* Of a recording: more processes than that have no names. */
#define MAX_PROCESSES 4096u
/* Threads whose process is remembered. */
#define N_THREADS 1024u
/* Addresses below lie in files, not in memory, where perf names a file. */
#define LOWEST_ADDRESS (UINT64_C(1) << 32)

struct process {
	pid_t pid;
	struct ask_process *asked; /* NULL: there is no asking about it */
	bool opened;               /* or was tried to be */
	bool pending;              /* has edits */
	struct offsets offsets;
};

/* Bytes of the text that may be replaced, and what to ask for that. */
struct edit {
	const char *from, *to;
	struct process *process;
	struct ask_item item;
	enum stacks_form form;
	size_t name, name_len; /* in names; length 0: no answer, the text stays */
	bool retry;
};

struct filter {
	struct ask ask;
	struct stacks stacks;
	pid_t only; /* 0: those that perf names */
	bool mono;
	enum names_style style;
	bool tiers;

	struct process **processes;
	size_t n_processes;
	struct {
		pid_t tid, pid;
	} threads[N_THREADS];

	struct edit *edits;
	size_t n_edits, room_edits;
	struct edit **asked; /* those of one question */
	struct buf names, out;
	uint64_t retry_ns;         /* not before */
	bool told_clock;           /* that it is not known */
	bool told_mappings;        /* that there are none of a process */
	bool sampled;              /* perf's text: it says itself what process it is of */
	bool bare;                 /* addresses came that nothing says the process of */
	bool told_nameless;        /* that */
	bool failed;               /* said on stderr; the rest goes out as it is */
	unsigned int gone, denied; /* processes that had exited, or may not be looked at */
	pid_t first_denied;
};

static void filter_deinit(struct filter *f)
{
	size_t i;

	ask_deinit(&f->ask);
	for (i = 0; i < f->n_processes; i++) {
		offsets_deinit(&f->processes[i]->offsets);
		free(f->processes[i]);
	}
	free(f->processes);
	free(f->edits);
	free(f->asked);
	buf_deinit(&f->names);
	buf_deinit(&f->out);
}

/* -- processes ---------------------------------------------------------------------------- */

/*
 * perf names the thread, unless it is told otherwise. A number that nobody has any more is taken
 * for the process's own, which it is for main threads.
 */
static pid_t process_of_thread(struct filter *f, pid_t tid)
{
	size_t slot = (size_t)tid % N_THREADS;
	_cleanup_fclose_ FILE *file = NULL;
	char path[64], line[256];
	int pid = 0;

	if (f->threads[slot].tid == tid)
		return f->threads[slot].pid;
	snprintf(path, sizeof(path), "/proc/%d/status", (int)tid);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file) && sscanf(line, "Tgid: %d", &pid) != 1)
		;
	f->threads[slot].tid = tid;
	f->threads[slot].pid = pid > 0 ? pid : tid;
	return f->threads[slot].pid;
}

/*
 * Asks whoever answers to answer for it. A recording of the whole machine has many that are no
 * .NET processes: they are not worth a line, nor an attempt.
 */
static int open_process(struct filter *f, struct process *p)
{
	_cleanup_(proc_closep) struct proc *proc = NULL;
	enum proc_dotnet kind = PROC_NOT_DOTNET;
	bool gone, quiet;
	int r;

	if (ask_connect(&f->ask)) {
		f->failed = true;
		return 0;
	}
	r = proc_open(p->pid, &proc);
	if (r == 0)
		r = proc_detect_dotnet(proc, &kind);
	gone = r == PROC_E_GONE || r == -ESRCH || r == -ENOENT;
	if (r == 0 && kind == PROC_NOT_DOTNET)
		return 0;
	quiet = r && !f->only;
	/* the daemon may remember one that has gone */
	r = gone && quiet && !f->ask.client ? 1 : ask_open(&f->ask, p->pid, quiet, &p->asked);
	f->gone += r == 1 && gone;
	if (r == 1 && quiet && !gone && !f->denied++)
		f->first_denied = p->pid;
	f->failed |= f->ask.failed;
	return MIN(r, 0);
}

/* Finds or adds a process. *outp NULL: over the cap. Returns 0 or -ENOMEM. */
static int find_process(struct filter *f, pid_t pid, struct process **outp)
{
	struct process **more, *p;
	size_t i;

	*outp = NULL;
	for (i = f->n_processes; i-- > 0;) {
		if (f->processes[i]->pid == pid) {
			*outp = f->processes[i];
			return 0;
		}
	}
	if (f->n_processes == MAX_PROCESSES)
		return 0;
	more = reallocarray(f->processes, f->n_processes + 1, sizeof(*more));
	if (!more)
		return -ENOMEM;
	f->processes = more;
	p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	p->pid = pid;
	more[f->n_processes++] = p;
	*outp = p;
	return 0;
}

/* The process that the line under way is of; *outp NULL: none, or none to be named. */
static int current_process(struct filter *f, struct process **outp)
{
	pid_t pid = f->only;
	struct process *p;
	int r;

	*outp = NULL;
	if (f->stacks.in_sample) {
		if (!f->stacks.has_pid)
			return 0;
		pid = f->stacks.pid_only ? process_of_thread(f, f->stacks.pid) : f->stacks.pid;
		if (f->only && pid != f->only)
			return 0;
	}
	if (pid <= 0)
		return 0;
	r = find_process(f, pid, &p);
	if (r < 0 || !p)
		return r;
	if (!p->opened)
		r = open_process(f, p);
	p->opened = true;
	*outp = p->asked ? p : NULL;
	return r;
}

/* -- what to ask -------------------------------------------------------------------------- */

/* The time of the sample under way; 0: the last known state answers. */
static uint64_t current_time(struct filter *f)
{
	if (!f->stacks.in_sample || !f->stacks.time)
		return 0;
	if (f->mono || f->stacks.clock == STACKS_CLOCK_MONO)
		return f->stacks.time;
	if (!f->told_clock)
		log_warn("%s: the last known state answers for all times (perf record -k mono, "
			 "and --time-is-mono or perf script --header)",
			 f->stacks.clock == STACKS_CLOCK_OTHER
				 ? "the recording's clock is not CLOCK_MONOTONIC"
				 : "the recording's clock is not known");
	f->told_clock = true;
	return 0;
}

/* Once: perf tells offsets into files, and nothing tells where in memory these were. */
static void tell_mappings(struct filter *f, const struct process *p)
{
	_cleanup_(proc_closep) struct proc *proc = NULL;

	if (f->told_mappings || p->offsets.n_told || p->offsets.n_now)
		return;
	f->told_mappings = true;
	log_warn("pid %d %s: add --show-mmap-events to perf script", (int)p->pid,
		 proc_open(p->pid, &proc) == PROC_E_GONE ? "has exited"
							 : "does not show us its mappings");
}

/* The address in memory. Returns 0, 1 (not to be had) or -errno. */
static int find_address(struct filter *f, struct process *p, const struct stacks_address *a,
			uint64_t *addrp)
{
	int r;

	*addrp = a->addr;
	if (!a->is_offset)
		return 0;
	r = offsets_find(&p->offsets, p->pid, a->path, a->path_len, a->addr, addrp);
	/* memory without a file, with a perf map's name in the file's place */
	if (r == 1 && a->addr >= LOWEST_ADDRESS)
		return 0;
	if (r == 1)
		tell_mappings(f, p);
	return r;
}

static void tell_nameless(struct filter *f)
{
	if (!f->told_nameless)
		log_warn("raw addresses, and nothing says of which process: use -p PID");
	f->told_nameless = true;
}

static int add_edit(struct filter *f, const struct stacks_address *a)
{
	struct process *p;
	uint64_t addr;
	int r;

	if (a->addr >> 63)
		return 0;
	if (!f->only && !f->sampled) {
		f->bare = true;
		/* others may come before perf's first sample: the end shows whether there is one */
		if (a->form != STACKS_BARE)
			tell_nameless(f);
	}
	if (a->form == STACKS_BARE && !f->only)
		return 0;
	r = current_process(f, &p);
	if (r < 0 || !p)
		return r;
	r = find_address(f, p, a, &addr);
	if (r)
		return MIN(r, 0);
	if (f->n_edits == f->room_edits) {
		size_t room = f->room_edits ? 2 * f->room_edits : 256;
		struct edit *more = reallocarray(f->edits, room, sizeof(*more));

		if (!more)
			return -ENOMEM;
		f->edits = more;
		f->room_edits = room;
	}
	p->pending = true;
	f->edits[f->n_edits++] = (struct edit){
		.from = f->stacks.line + a->from,
		.to = f->stacks.line + a->to,
		.process = p,
		.item = { .addr = addr, .time = current_time(f), .caller = a->caller },
		.form = a->form,
	};
	return 0;
}

/* A mapping that perf tells of; kept for processes of which there is a sample, too. */
static int take_mapping(struct filter *f)
{
	struct stacks_mapping m;
	struct process *p;
	int r;

	stacks_get_mapping(&f->stacks, &m);
	if (m.pid <= 0 || (f->only && m.pid != f->only))
		return 0;
	r = find_process(f, m.pid, &p);
	return r < 0 || !p ? r : offsets_add(&p->offsets, &m);
}

/* Looks through a line. */
static int take_line(struct filter *f, const struct line *line)
{
	struct stacks_address a;
	enum stacks_kind kind;
	int r = 0;

	if (line->part) {
		stacks_skip(&f->stacks);
		return 0;
	}
	kind = stacks_line(&f->stacks, line->text, line->text_len);
	if (kind == STACKS_MAPPING)
		return take_mapping(f);
	f->sampled |= kind == STACKS_SAMPLE;
	while (r == 0 && !f->failed && stacks_next(&f->stacks, &a))
		r = add_edit(f, &a);
	return r;
}

/* -- answers ------------------------------------------------------------------------------ */

static void put_name(struct filter *f, const struct edit *e, const struct ask_answer *a)
{
	const struct query_method *m = a->method;
	const struct names_method parts = {
		.ns = m->ns,
		.ns_len = (uint32_t)m->ns_len,
		.name = m->name,
		.name_len = (uint32_t)m->name_len,
		.sig = m->sig,
		.sig_len = (uint32_t)m->sig_len,
	};

	names_append(&f->names, &parts, f->style, false);
	if (f->tiers)
		buf_printf(&f->names, "[%s]", answer_tier(m));
	if (e->form == STACKS_PERF || e->form == STACKS_BARE)
		buf_printf(&f->names, "+0x%" PRIx32, a->offset);
	else
		buf_printf(&f->names, "+%" PRIu32, a->offset);
	if (e->form != STACKS_UNKNOWN)
		return;
	buf_puts(&f->names, " (");
	if (m->module)
		escape_line(&f->names, m->module, m->module_len, SIZE_MAX);
	else
		buf_puts(&f->names, "[unknown]");
	buf_putc(&f->names, ')');
}

static int on_answer(void *data, size_t i, const struct ask_answer *a)
{
	struct filter *f = data;
	struct edit *e = f->asked[i];

	e->retry = false;
	if (!a->method) {
		e->retry = !e->item.time && strcmp(a->reason, "not announced") == 0;
		return 0;
	}
	e->name = f->names.len;
	put_name(f, e, a);
	e->name_len = f->names.len - e->name;
	return f->names.error;
}

/*
 * Asks for the edits of one process that are still to be asked for. now: they may be
 * too new, so that it is worth waiting.
 */
static int ask_for(struct filter *f, struct process *p, uint64_t now)
{
	_cleanup_free_ struct ask_item *items = calloc(f->n_edits, sizeof(*items));
	uint64_t newest = now;
	size_t i, n = 0;

	if (!items)
		return -ENOMEM;
	for (i = 0; i < f->n_edits; i++) {
		struct edit *e = &f->edits[i];

		if (e->process != p || (now && !e->retry))
			continue;
		f->asked[n] = e;
		items[n] = e->item;
		if (now)
			items[n].time = now;
		newest = MAX(newest, items[n].time);
		n++;
	}
	/* a time that is still to come is none */
	return ask_resolve(p->asked, items, n,
			   newest && newest <= clock_now_ns() ? CAP_QUERY_WAIT_MS : 0, on_answer,
			   f);
}

static int ask_each(struct filter *f, uint64_t now)
{
	struct edit **asked = reallocarray(f->asked, f->room_edits, sizeof(*asked));
	size_t i;
	int r = 0;

	if (!asked)
		return -ENOMEM;
	f->asked = asked;
	for (i = 0; i < f->n_processes && r == 0; i++)
		if (f->processes[i]->pending)
			r = ask_for(f, f->processes[i], now);
	return r;
}

/* All edits of this round. */
static int ask_all(struct filter *f)
{
	uint64_t now = clock_now_ns();
	size_t i, n_retry = 0;
	int r;

	if (!f->n_edits)
		return 0;
	r = ask_each(f, 0);
	for (i = 0; i < f->n_edits; i++)
		n_retry += f->edits[i].retry;
	if (r == 0 && n_retry && now >= f->retry_ns) {
		r = ask_each(f, now);
		f->retry_ns = clock_now_ns() + RETRY_NS;
	}
	for (i = 0; i < f->n_processes; i++)
		f->processes[i]->pending = false;
	if (r == 1)
		f->failed = true;
	return MIN(r, 0);
}

/* -- text --------------------------------------------------------------------------------- */

static int write_out(struct filter *f)
{
	size_t at = 0;
	ssize_t n;

	while (at < f->out.len) {
		n = write(STDOUT_FILENO, f->out.data + at, f->out.len - at);
		if (n < 0 && errno != EINTR)
			return -errno;
		at += n > 0 ? (size_t)n : 0;
	}
	buf_clear(&f->out);
	return 0;
}

static int put_out(struct filter *f, const void *data, size_t n)
{
	int r = buf_append(&f->out, data, n);

	return r < 0 || f->out.len < OUT_BYTES ? r : write_out(f);
}

/* The text between two places, with its edits. */
static int put_text(struct filter *f, const char *from, const char *to)
{
	size_t i;
	int r = 0;

	for (i = 0; i < f->n_edits && r == 0; i++) {
		const struct edit *e = &f->edits[i];

		if (!e->name_len)
			continue;
		r = put_out(f, from, (size_t)(e->from - from));
		if (r == 0)
			r = put_out(f, f->names.data + e->name, e->name_len);
		from = e->to;
	}
	if (r == 0)
		r = put_out(f, from, (size_t)(to - from));
	return r < 0 ? r : write_out(f);
}

/* One round: what is there. */
static int filter_lines(struct filter *f, struct lines *lines)
{
	const char *from = lines->data + lines->start;
	struct line line;
	int r = 0;

	f->n_edits = 0;
	buf_clear(&f->names);
	while (r == 0 && lines_next(lines, &line))
		r = take_line(f, &line);
	if (r == 0)
		r = ask_all(f);
	return r < 0 ? r : put_text(f, from, lines->data + lines->start);
}

/* Returns 0, 1 (a signal came) or -errno. */
static int filter_run(struct filter *f)
{
	_cleanup_(lines_deinit) struct lines lines = { 0 };
	bool end = false;
	int r;

	r = lines_init(&lines, STDIN_FILENO);
	while (r == 0) {
		r = lines_read(&lines, &f->ask, &end);
		if (r || end)
			break;
		r = filter_lines(f, &lines);
	}
	return r;
}

/* -- the verb ----------------------------------------------------------------------------- */

static void help(void)
{
	printf("Usage: COMMAND | clrsym filter [OPTION]...\n"
	       "Copies stdin to stdout, with names in place of the raw addresses of .NET code: in "
	       "the\n"
	       "output of perf script, of bpftrace (ustack, ustack(perf), ustack(raw)), or any "
	       "0x7f..\n\n"
	       "  -p, --pid PID           the process; needed where the text does not name it\n"
	       "                          (all but perf script)\n"
	       "      --time-is-mono      perf's times are CLOCK_MONOTONIC (perf record -k mono);\n"
	       "                          perf script --header says so itself\n"
	       "      --names short|full  Ns.Type::Method, or with its arguments (short)\n"
	       "      --tiers             append the tier, e.g. "
	       "[OptimizedTier1]\n" DAEMON_OPTIONS_HELP
	       "\nWhat has no name stays as it is; clrsym resolve tells why. A process that has "
	       "exited\n"
	       "is named if clrsymd was attached to it, and perf script needs "
	       "--show-mmap-events.\n" CLI_EXIT_HELP
	       "1, too, if clrsymd or the process cannot be asked.\n");
}

enum { OPT_MONO = 256, OPT_NAMES, OPT_TIERS };

/* Takes an option. 0, or an exit status plus 1. */
static int take_option(struct filter *f, int c)
{
	int r;

	switch (c) {
	case 'p': r = cli_parse_pid("filter", optarg, &f->only); return r ? 1 + r : 0;
	case OPT_MONO: f->mono = true; return 0;
	case OPT_NAMES:
		if (!names_parse_style(optarg, &f->style))
			return 1 + cli_usage_error("filter", "--names takes short or full");
		return 0;
	case OPT_TIERS: f->tiers = true; return 0;
	case 'h': help(); return 1 + cli_flush();
	default: return 1 + cli_usage_hint("filter");
	}
}

/* With a process given: before any text, so that its code is known when it is needed. */
static int open_only(struct filter *f)
{
	struct process *p;
	int r;

	r = find_process(f, f->only, &p);
	if (r == 0)
		r = ask_open(&f->ask, f->only, false, &p->asked);
	if (r == 0)
		p->opened = true;
	return r;
}

int cli_filter(int argc, char **argv)
{
	static const struct option options[] = {
		{ "pid", required_argument, NULL, 'p' },
		{ "time-is-mono", no_argument, NULL, OPT_MONO },
		{ "names", required_argument, NULL, OPT_NAMES },
		{ "tiers", no_argument, NULL, OPT_TIERS },
		DAEMON_OPTIONS,
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	_cleanup_(filter_deinit) struct filter f = {
		.names.cap = SIZE_MAX,
		.out.cap = SIZE_MAX,
	};
	int c, r = 0;

	while ((c = getopt_long(argc, argv, "p:h", options, NULL)) >= 0) {
		r = daemon_option_take(&f.ask.daemon, c, optarg) ? 0 : take_option(&f, c);
		if (r)
			return r - 1;
	}
	if (optind != argc)
		return cli_usage_error("filter", "no arguments: the text comes on stdin");
	/* ^C is for who writes the text; what it writes thereupon wants names, too */
	if (!isatty(STDIN_FILENO))
		signal(SIGINT, SIG_IGN);
	if (f.only)
		r = open_only(&f);
	if (r == 0)
		r = filter_run(&f);
	if (f.bare && !f.sampled)
		tell_nameless(&f);
	if (f.gone)
		log_info("%u process%s had exited: no names for %s frames", f.gone,
			 f.gone == 1 ? "" : "es", f.gone == 1 ? "its" : "their");
	cli_say_denied(f.denied, f.first_denied);
	r = cli_end(r);
	return f.failed ? EXIT_FAILED : r;
}
