/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way of a recording:
 *
 *   open       a file, a directory of parts, or a pipe (spooled to a file without a name)
 *   scan       which programs, which code addresses
 *   sources    for each program that is worth it: the source that is there, or attach
 *   wait       until all that happened up to the last sample is known
 *   code       bytes of the bodies that were hit are read, and trusted only afterwards
 *   plan       images go into the build-id cache (or a directory) first,
 *   rewrite    then the recording appears, by rename
 */
#include "cli/recording_state.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/publish.h"
#include "cli/trust.h"

/* A source's answers trail by some hundred ms; a starved target may take longer. */
#define WAIT_KNOWN_NS  SEC_NS(10)
#define WAIT_ATTACH_NS (DEFAULT_RUNDOWN_DEADLINE_NS + 4 * DEFAULT_IPC_DEADLINE_NS)

static void recording_deinit(struct recording *rec)
{
	size_t i;

	recording_close(rec);
	free(rec->sources);
	for (i = 0; rec->why && i < inject_n_programs(rec->inj); i++)
		free(rec->why[i]);
	free(rec->why);
	inject_free(rec->inj);
	free(rec->quiet);
	buildid_cache_free(rec->cache);
	buf_deinit(&rec->text);
}

static int scan(struct recording *rec)
{
	struct inject_options opts = rec->opts->inject;
	size_t i;
	int r;

	opts.progress = recording_progress;
	opts.progress_data = rec;
	rec->tty = isatty(STDERR_FILENO);
	rec->doing = "reading";
	r = inject_new(&rec->inj, &opts);
	if (r < 0)
		return recording_say(rec->opts->in, r);
	for (i = 0; i < rec->n_parts; i++) {
		struct part *part = &rec->parts[i];

		r = perfdata_open(&part->data, part->fd, i ? rec->parts[0].data : NULL);
		if (r == 0)
			r = inject_scan(rec->inj, part->data);
		recording_progress_end(rec);
		if (r)
			return recording_say_data(rec, part, r);
	}
	r = inject_scanned(rec->inj);
	return r < 0 ? recording_say(rec->opts->in, r) : 0;
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

/* Relates the recording's clock to that of the code maps, and says whether it is of this boot. */
static void set_clock(struct recording *rec)
{
	struct perfdata_clock_pair pair = { 0 };
	struct perfdata_clock clock;
	uint64_t first, last;
	int r;

	perfdata_get_clock(rec->parts[0].data, &clock);
	inject_get_span(rec->inj, &first, &last);
	r = perfdata_clock_measure(clock.use_clockid, clock.clockid, &pair);
	rec->distrust = trust_recording(rec->inj, rec->parts[0].data, r ? 0 : pair.clock_ns);
	rec->track = rec->opts->track;
	if (!last) {
		rec->no_times = "the recording has no times";
		return;
	}
	if (clock.use_clockid && clock.clockid == CLOCK_MONOTONIC) {
		rec->track.n = 0;
		rec->convert = true;
		return;
	}
	if (!rec->track.n && r == 0 && !rec->distrust)
		perfdata_clock_track_add(&rec->track, &pair);
	rec->convert = rec->track.n > 0;
	if (!rec->convert)
		rec->no_times = rec->distrust ? rec->distrust : perfdata_clock_error_text(r);
}

/* -- sources -------------------------------------------------------------------------- */

static void PRINTF_LIKE(3, 4) set_why(struct recording *rec, size_t i, const char *fmt, ...)
{
	va_list ap;

	free(rec->why[i]);
	va_start(ap, fmt);
	if (vasprintf(&rec->why[i], fmt, ap) < 0)
		rec->why[i] = NULL;
	va_end(ap);
}

static const char *trust(struct recording *rec, size_t i, uint64_t start,
			 const struct source_mapping *mappings, size_t n_mappings)
{
	const struct inject_program *program = inject_program(rec->inj, i);

	return trust_program(
		rec->inj, i, start,
		rec->convert && program->first_ns ? recording_to_map_ns(rec, program->first_ns) : 0,
		mappings, n_mappings);
}

/* A source that knows this program already. */
static struct source *find_source(struct recording *rec, size_t i)
{
	const struct inject_program *program = inject_program(rec->inj, i);
	struct source *s;

	for (s = rec->set->list; s; s = s->next) {
		if ((uint32_t)s->pid != program->pid)
			continue;
		if (!s->target ||
		    (s->complete && !trust(rec, i, s->start_ns, s->mappings, s->n_mappings)))
			return s;
		set_why(rec, i, "%s",
			s->complete ? trust(rec, i, s->start_ns, s->mappings, s->n_mappings)
				    : s->why);
	}
	return NULL;
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
	if (r == 0 && !why)
		why = trust(rec, i, source_proc_start(proc), mappings, n_mappings);
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
	return source_attach_proc(rec->set, TAKE_PTR(proc), &rec->sources[i]);
}

static int choose_source(struct recording *rec, size_t i)
{
	const struct inject_program *program = inject_program(rec->inj, i);

	if (!program->sampled || !(program->runtime || program->maybe)) {
		rec->quiet[i] = true;
		return 0;
	}
	rec->sources[i] = find_source(rec, i);
	if (rec->sources[i] || rec->why[i])
		return 0;
	if (!rec->opts->attach) {
		rec->quiet[i] = !program->runtime;
		set_why(rec, i, "it was not there long enough to be attached to");
		return 0;
	}
	if (program->ended) {
		rec->quiet[i] = !program->runtime;
		set_why(rec, i,
			"it %s, and was not attached to while it ran (clrsym perf does that)",
			program->replaced ? "runs another program now (exec)" : "has exited");
		return 0;
	}
	if (rec->distrust) {
		rec->quiet[i] = !program->runtime;
		set_why(rec, i, "%s", rec->distrust);
		return 0;
	}
	return attach(rec, i);
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
	struct source *s = data;
	const uint8_t *bytes;

	return s->target && target_code(s->target, info, &bytes) == 0 ? bytes : NULL;
}

static int gather(struct recording *rec)
{
	size_t i, n = inject_n_programs(rec->inj);
	int r;

	rec->sources = calloc(n + 1, sizeof(*rec->sources));
	rec->why = calloc(n + 1, sizeof(*rec->why));
	rec->quiet = calloc(n + 1, sizeof(*rec->quiet));
	if (!rec->sources || !rec->why || !rec->quiet)
		return -ENOMEM;
	for (i = 0; i < n; i++) {
		r = choose_source(rec, i);
		if (r < 0)
			return r;
	}
	r = sources_wait(rec->set, all_complete, rec, clock_now_ns() + WAIT_ATTACH_NS);
	if (r == 0)
		r = sources_wait(rec->set, all_known, rec, clock_now_ns() + WAIT_KNOWN_NS);
	if (r >= 0 && rec->set->interrupted)
		return -ECANCELED;
	if (r == 0)
		r = run_down_again(rec);
	if (r == 0 && !rec->opts->no_code)
		r = read_code(rec);
	for (i = 0; i < n; i++) {
		struct source *s = rec->sources[i];
		struct inject_code code = {
			.map = s ? source_map(s) : NULL,
			.machine = s ? s->machine : 0,
			.owner = s ? s->owner : 0,
			.bytes = rec->opts->no_code ? NULL : code_bytes,
			.data = s,
		};

		if (!s)
			continue;
		if (*s->why)
			set_why(rec, i, "%s", s->why);
		if (!s->complete) {
			rec->sources[i] = NULL;
			continue;
		}
		if (rec->convert) {
			code.to_file_ns = to_file_ns;
			code.to_map_ns = recording_to_map_ns;
			code.clock = rec;
		}
		inject_set_code(rec->inj, i, &code);
	}
	r = MIN(r, 0);
	return r < 0 ? r : sources_stop(rec->set);
}

/* -- images --------------------------------------------------------------------------- */

static int write_image(int fd, void *data)
{
	const struct elf_image *const *imagep = data;

	return elf_image_write(*imagep, fd);
}

static int put_images(struct recording *rec)
{
	size_t i, n = inject_n_images(rec->inj);
	int r = 0;

	for (i = 0; i < n && r == 0; i++) {
		const uint8_t *id;
		const char *label;
		const struct elf_image *image = inject_image(rec->inj, i, &label, &id);

		if (!image)
			continue;
		if (rec->opts->inject.image_dir) {
			r = publish_file(label, write_image, &image);
			if (r < 0)
				return recording_say(label, r);
			continue;
		}
		if (!rec->cache)
			r = buildid_cache_open(&rec->cache, rec->opts->buildid_dir);
		if (r == 0)
			r = buildid_cache_add(rec->cache, label, id, write_image, &image);
	}
	if (r)
		log_error("%s", r < 0 ? strerror(-r) : buildid_cache_error_text(rec->cache, r));
	return r;
}

int recording_inject(struct sources *set, const struct recording_options *opts)
{
	_cleanup_(recording_deinit) struct recording rec = {
		.opts = opts,
		.set = set,
		.dir_fd = -1,
		.begin_ns = clock_now_ns(),
	};
	const char *bad;
	int r;

	buf_init(&rec.text, CAP_PROC_FILE);
	r = recording_open(&rec);
	if (r == -ESPIPE)
		log_error("%s: neither a file, nor a recording's folder, nor a pipe",
			  recording_shown(opts->in, false));
	else if (r < 0)
		recording_say(opts->in, r);
	if (r < 0)
		return EXIT_FAILED;
	if (scan(&rec))
		return EXIT_FAILED;
	bad = opts->dry_run ? NULL : recording_bad_output(&rec);
	if (bad) {
		log_error("%s: %s", recording_shown(opts->out, true), bad);
		return EXIT_FAILED;
	}
	set_clock(&rec);
	r = opts->inject.map_only ? 0 : gather(&rec);
	if (r == 0 && opts->strict && recording_is_hopeless(&rec))
		return EXIT_FAILED;
	if (r == 0)
		r = inject_plan(rec.inj);
	if (r)
		return recording_say_data(&rec, &rec.parts[0], r), EXIT_FAILED;
	if (!opts->dry_run && put_images(&rec))
		return EXIT_FAILED;
	if (recording_rewrite(&rec))
		return EXIT_FAILED;
	recording_report(&rec);
	return EXIT_DONE;
}
