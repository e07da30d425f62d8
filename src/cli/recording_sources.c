/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a recording's names come from. For each program that is worth it, in this order:
 *
 *   a source that is there     a recorded stream, or what was attached to while perf ran
 *   what the daemon has of it  also of a process that has exited
 *   attaching                  through the daemon, or by ourselves where there is none
 *
 * and each only if it is the program that was recorded (trust.h). Then: waiting until all that
 * happened up to the last sample is known, and reading the code bytes of the bodies that were
 * hit, which are trusted only afterwards.
 *
 * A daemon's code bytes and clock pairs come with its export. Precompiled methods first used after
 * the attach are announced by a rundown only, and no one can ask the daemon for another: those
 * of its processes may stay unnamed.
 */
#include "cli/recording_state.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "cli/trust.h"

/* A source's answers trail by some hundred ms; a starved target may take longer. */
#define WAIT_KNOWN_NS  SEC_NS(10)
#define WAIT_ATTACH_NS (DEFAULT_RUNDOWN_DEADLINE_NS + 4 * DEFAULT_IPC_DEADLINE_NS)

static void PRINTF_LIKE(3, 4) set_why(struct recording *rec, size_t i, const char *fmt, ...)
{
	va_list ap;

	free(rec->why[i]);
	va_start(ap, fmt);
	if (vasprintf(&rec->why[i], fmt, ap) < 0)
		rec->why[i] = NULL;
	va_end(ap);
}

/* -- time ----------------------------------------------------------------------------- */

static uint64_t to_file_ns(void *data, uint64_t ns)
{
	const struct recording *rec = data;

	return perfdata_clock_from_mono(&rec->track, ns);
}

uint64_t recording_to_map_ns(void *data, uint64_t ns)
{
	const struct recording *rec = data;

	return perfdata_clock_to_mono(&rec->track, ns);
}

/* The daemon's measurements of this clock: pairs from before and while the recording was made. */
static void take_clock(const struct source *s, uint32_t clockid, struct perfdata_clock_track *track)
{
	size_t i;

	*track = (struct perfdata_clock_track){ 0 };
	for (i = 0; i < export_n_clocks(s->export); i++) {
		struct export_clock clock = export_clock_at(s->export, i);
		struct perfdata_clock_pair pair = {
			.mono_ns = clock.mono_ns,
			.clock_ns = clock.clock_ns,
			.error_ns = clock.error_ns,
		};

		if (clock.clockid == clockid)
			perfdata_clock_track_add(track, &pair);
	}
}

/*
 * Where the clock was not measured while the recording was made, the daemon's pairs are better than
 * one that was measured now, which stays as the last one.
 */
static void merge_clocks(struct recording *rec)
{
	struct perfdata_clock_track best = { 0 }, track;
	struct perfdata_clock clock;
	const struct source *s;
	uint64_t first, last;

	perfdata_get_clock(rec->parts[0].data, &clock);
	inject_get_span(rec->inj, &first, &last);
	if (!last || rec->opts->track.n || (clock.use_clockid && clock.clockid == CLOCK_MONOTONIC))
		return;
	for (s = rec->set->list; s; s = s->next) {
		if (s->kind != SOURCE_DAEMON || !s->complete)
			continue;
		take_clock(s, clock.use_clockid ? (uint32_t)clock.clockid : UINT32_MAX, &track);
		if (track.n > best.n)
			best = track;
	}
	if (!best.n)
		return;
	if (rec->track.n)
		perfdata_clock_track_add(&best, &rec->track.pairs[rec->track.n - 1]);
	rec->track = best;
	rec->convert = true;
	rec->no_times = NULL;
}

/* The recording's last moment, which is past by now. */
static uint64_t last_moment(struct recording *rec)
{
	uint64_t first, last, now = clock_now_ns();

	inject_get_span(rec->inj, &first, &last);
	return rec->convert && last ? MIN(now, recording_to_map_ns(rec, last)) : now;
}

/* -- who it is ------------------------------------------------------------------------ */

static const char *trust(struct recording *rec, size_t i, const struct trust_process *process)
{
	const struct inject_program *program = inject_program(rec->inj, i);
	uint64_t first =
		rec->convert && program->first_ns ? recording_to_map_ns(rec, program->first_ns) : 0;

	return trust_program(rec->inj, i, first, process);
}

/* Why this source is not for that program; NULL: it is. */
static const char *refuse(struct recording *rec, size_t i, const struct source *s)
{
	struct trust_process process = {
		.start_ns = s->start_ns,
		.over = s->kind == SOURCE_DAEMON &&
			(s->ended || inject_program(rec->inj, i)->ended),
		.mappings = s->mappings,
		.n_mappings = s->n_mappings,
	};

	if (s->kind == SOURCE_TRACE)
		return NULL;
	if (s->complete)
		return trust(rec, i, &process);
	return *s->why ? s->why : "another program has that pid now";
}

/*
 * A source that knows this program already. True: that is settled; with a reason instead if
 * another program has the pid now, as there is nothing to attach to then.
 */
static bool find_source(struct recording *rec, size_t i)
{
	const struct inject_program *program = inject_program(rec->inj, i);
	struct source *s;
	bool settled = false;

	for (s = rec->set->list; s; s = s->next) {
		const char *why;

		if ((uint32_t)s->pid != program->pid)
			continue;
		why = refuse(rec, i, s);
		if (!why) {
			rec->sources[i] = s;
			return true;
		}
		set_why(rec, i, "%s", why);
		settled |= !s->ended;
	}
	return settled;
}

/* -- the daemon ----------------------------------------------------------------------- */

static bool is_taken(const struct recording *rec, const struct daemon_process *process)
{
	const struct source *s;

	for (s = rec->set->list; s; s = s->next)
		if (s->kind == SOURCE_DAEMON && s->pid == process->pid &&
		    s->start == process->start && (s->complete || !s->ended))
			return true;
	return false;
}

/* Takes over what it has under the program's pid. Returns 0 or -errno. */
static int ask_daemon(struct recording *rec, size_t i)
{
	const struct inject_program *program = inject_program(rec->inj, i);
	_cleanup_free_ struct daemon_process *items = NULL;
	size_t k, n;
	int r;

	r = sources_list(rec->set, &items, &n);
	for (k = 0; k < n && r == 0; k++) {
		struct source *s;

		if ((uint32_t)items[k].pid != program->pid || is_taken(rec, &items[k]))
			continue;
		if (!rec->set->daemon)
			break;
		s = source_from_daemon(rec->set, &items[k]);
		r = s ? source_export(s, !rec->opts->no_code, rec->until_ns) : -ENOMEM;
	}
	return r;
}

/* Takes over what the daemon holds for us. Returns 0 or -errno. */
static int export_held(struct recording *rec)
{
	struct source *s;
	int r = 0;

	for (s = rec->set->list; s && r == 0; s = s->next)
		if (s->held && !s->complete && !s->ended)
			r = source_export(s, !rec->opts->no_code, rec->until_ns);
	return r;
}

/* -- attaching ------------------------------------------------------------------------ */

/* Through the daemon, if there is one. */
static int attach_proc(struct recording *rec, size_t i, struct proc *proc)
{
	int r;

	if (sources_daemon(rec->set)) {
		r = source_hold(rec->set, proc->pid, proc->start, &rec->sources[i]);
		proc_close(proc);
		return r;
	}
	if (!rec->set->no_daemon)
		return source_attach_proc(rec->set, proc, &rec->sources[i]);
	if (!rec->why[i])
		set_why(rec, i, "%s, and may be attached to it", rec->set->no_daemon);
	proc_close(proc);
	return 0;
}

/* Attaches to the process that has the program's pid, if it is that program. */
static int attach(struct recording *rec, size_t i)
{
	const struct inject_program *program = inject_program(rec->inj, i);
	_cleanup_(proc_closep) struct proc *proc = NULL;
	struct source_mapping *mappings = NULL;
	enum proc_dotnet kind;
	size_t n_mappings = 0;
	const char *why = NULL;
	int r;

	r = proc_open((pid_t)program->pid, &proc);
	if (r == 0)
		r = proc_detect_dotnet(proc, &kind);
	if (r == 0 && kind == PROC_NOT_DOTNET) {
		rec->quiet[i] = !program->runtime;
		why = "another process has that pid now";
	}
	if (r == 0 && !why)
		r = source_read_mappings(proc, &mappings, &n_mappings);
	if (r == 0 && !why) {
		struct trust_process process = {
			.start_ns = proc_start_ns(proc),
			.mappings = mappings,
			.n_mappings = n_mappings,
		};

		why = trust(rec, i, &process);
	}
	source_free_mappings(mappings, n_mappings);
	if (r < 0)
		return r;
	if (r > 0 && r != PROC_E_GONE)
		why = proc_error_text(proc, r, NULL);
	else if (r == PROC_E_GONE)
		why = "it has exited, and was not attached to while it ran (clrsym perf does that)";
	if (why) {
		rec->quiet[i] |= !program->runtime;
		set_why(rec, i, "%s", why);
		return 0;
	}
	return attach_proc(rec, i, TAKE_PTR(proc));
}

static int choose_source(struct recording *rec, size_t i)
{
	const struct inject_program *program = inject_program(rec->inj, i);
	bool settled;
	int r = 0;

	if (!program->sampled || !(program->runtime || program->maybe)) {
		rec->quiet[i] = true;
		return 0;
	}
	settled = find_source(rec, i);
	if (!settled && !rec->distrust) {
		r = ask_daemon(rec, i);
		settled = r == 0 && find_source(rec, i);
	}
	if (r < 0 || settled)
		return r;
	if (!rec->opts->attach || program->ended || rec->distrust)
		rec->quiet[i] = !program->runtime;
	else
		return attach(rec, i);
	if (rec->why[i])
		return 0;
	if (!rec->opts->attach)
		set_why(rec, i, "%s",
			rec->set->no_daemon ? rec->set->no_daemon
					    : "it was not there long enough to be attached to");
	else if (program->ended)
		set_why(rec, i,
			"it %s, and was not attached to while it ran (clrsym perf does that)",
			program->replaced ? "runs another program now (exec)" : "has exited");
	else
		set_why(rec, i, "%s", rec->distrust);
	return 0;
}

static bool all_complete(void *data)
{
	const struct recording *rec = data;
	size_t i;

	for (i = 0; i < inject_n_programs(rec->inj); i++)
		if (rec->sources[i] && !rec->sources[i]->complete && !rec->sources[i]->ended)
			return false;
	return true;
}

/* All that happened up to the last record of each program. */
static bool all_known(void *data)
{
	struct recording *rec = data;
	size_t i;

	for (i = 0; i < inject_n_programs(rec->inj); i++) {
		uint64_t last = inject_program(rec->inj, i)->last_ns;

		if (rec->sources[i] && rec->convert && last &&
		    !source_knows(rec->sources[i], recording_to_map_ns(rec, last)))
			return false;
	}
	return true;
}

/* A rundown that was asked for is over. */
static bool all_run_down(void *data)
{
	const struct recording *rec = data;
	size_t i;

	for (i = 0; i < inject_n_programs(rec->inj); i++) {
		const struct source *s = rec->sources[i];
		struct target_status status;

		if (!s || !s->rundowns || s->ended)
			continue;
		target_get_status(s->target, &status);
		if (status.rundowns <= s->rundowns)
			return false;
	}
	return true;
}

/*
 * Precompiled methods that were first used after the attach are announced by a rundown only. Where
 * such code was hit and its process still lives, there is one more.
 */
static int run_down_again(struct recording *rec)
{
	size_t i;

	for (i = 0; i < inject_n_programs(rec->inj); i++) {
		struct source *s = rec->sources[i];
		struct target_status status;

		if (!s || !s->target || s->ended || !s->complete ||
		    !inject_misses_precompiled(rec->inj, i, source_map(s)))
			continue;
		/* its first one came after the recording: another would not know more */
		if (s->attach_ns > rec->begin_ns)
			continue;
		target_get_status(s->target, &status);
		s->rundowns = status.rundowns;
		target_rundown_again(s->target);
	}
	return sources_wait(rec->set, all_run_down, rec, clock_now_ns() + WAIT_KNOWN_NS);
}

/* -- code ----------------------------------------------------------------------------- */

static int keep_body(void *data, const struct codemap_body *body)
{
	struct source *s = data;
	struct codemap_info info;

	codemap_body_info(source_map(s), body, &info);
	/* what cannot be read has a name all the same */
	return info.unload == UINT64_MAX ? MIN(target_keep_body(s->target, &info), 0) : 0;
}

static bool code_known(void *data)
{
	const struct recording *rec = data;
	size_t i;

	for (i = 0; i < inject_n_programs(rec->inj); i++)
		if (rec->sources[i] && !source_knows(rec->sources[i], rec->read_ns))
			return false;
	return true;
}

/* Reads the code of what was hit, and waits until it is known whose it was. */
static int read_code(struct recording *rec)
{
	size_t i;
	int r;

	for (i = 0; i < inject_n_programs(rec->inj); i++) {
		struct source *s = rec->sources[i];

		if (!s || !s->target || s->ended || !s->complete)
			continue;
		r = inject_each_hit(rec->inj, i, source_map(s), keep_body, s);
		if (r < 0)
			return r;
	}
	rec->read_ns = clock_now_ns();
	return sources_wait(rec->set, code_known, rec, rec->read_ns + WAIT_KNOWN_NS);
}

static const uint8_t *code_bytes(void *data, const struct codemap_info *info)
{
	return source_code(data, info);
}

/* -- all of it ------------------------------------------------------------------------ */

/* Hands the sources over, with what is to be said of them. */
static void set_code(struct recording *rec)
{
	size_t i;

	for (i = 0; i < inject_n_programs(rec->inj); i++) {
		struct source *s = rec->sources[i];
		struct inject_code code = { .data = s };

		if (!s)
			continue;
		if (*s->why)
			set_why(rec, i, "%s", s->why);
		if (!s->complete) {
			rec->sources[i] = NULL;
			continue;
		}
		code.map = source_map(s);
		code.machine = s->machine;
		code.owner = s->owner;
		code.bytes = rec->opts->no_code ? NULL : code_bytes;
		if (rec->convert) {
			code.to_file_ns = to_file_ns;
			code.to_map_ns = recording_to_map_ns;
			code.clock = rec;
		}
		inject_set_code(rec->inj, i, &code);
	}
}

/* All that is to be known is: 0, 1 when the time was over, or -errno. */
static int await_sources(struct recording *rec)
{
	int r;

	r = sources_wait(rec->set, all_complete, rec, clock_now_ns() + WAIT_ATTACH_NS);
	if (r == 0)
		r = sources_wait(rec->set, all_known, rec, clock_now_ns() + WAIT_KNOWN_NS);
	if (r >= 0 && rec->set->interrupted)
		return -ECANCELED;
	if (r == 0)
		r = run_down_again(rec);
	if (r == 0 && !rec->opts->no_code)
		r = read_code(rec);
	return r;
}

int recording_gather(struct recording *rec)
{
	size_t i, n = inject_n_programs(rec->inj);
	int r;

	rec->sources = calloc(n + 1, sizeof(*rec->sources));
	rec->why = calloc(n + 1, sizeof(*rec->why));
	rec->quiet = calloc(n + 1, sizeof(*rec->quiet));
	if (!rec->sources || !rec->why || !rec->quiet)
		return -ENOMEM;
	rec->until_ns = last_moment(rec);
	/* what was held while perf ran is a source like any other from here on */
	r = export_held(rec);
	for (i = 0; i < n && r == 0; i++)
		r = choose_source(rec, i);
	if (r == 0)
		r = export_held(rec);
	if (r < 0)
		return r;
	merge_clocks(rec);
	r = await_sources(rec);
	set_code(rec);
	return r < 0 ? r : sources_stop(rec->set);
}
