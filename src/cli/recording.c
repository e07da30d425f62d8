/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way of a recording:
 *
 *   open       a file, a directory of parts, or a pipe (spooled to a file without a name)
 *   scan       which programs, which code addresses
 *   sources    where names come from: see recording_sources.c
 *   plan       images go into the build-id cache (or a directory) first,
 *   rewrite    then the recording appears, by rename
 */
#include "cli/recording_state.h"

#include <errno.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/publish.h"
#include "cli/trust.h"

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
	r = opts->inject.map_only ? 0 : recording_gather(&rec);
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
