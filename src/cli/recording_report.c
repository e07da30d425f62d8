/* SPDX-License-Identifier: Apache-2.0 */
/* What people are told of a recording: progress, errors, and what has a name now and what not. */
#include "cli/recording_state.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/escape.h"
#include "base/log.h"

const char *recording_shown(const char *path, bool output)
{
	if (strcmp(path, "-") == 0)
		return output ? "stdout" : "stdin";
	return escape_terminal(path, strlen(path));
}

int recording_say(const char *path, int r)
{
	log_error("%s: %s", escape_terminal(path, strlen(path)), strerror(-r));
	return r;
}

int recording_say_data(const struct recording *rec, const struct part *part, int r)
{
	const char *text = r < 0                ? strerror(-r)
			   : r == INJECT_E_FULL ? "more mappings than any machine makes"
						: perfdata_error_text(part->data, r);

	log_error("%s%s%s: %s", recording_shown(rec->opts->in, false), part->name ? "/" : "",
		  part->name ? part->name : "", text);
	return -1;
}

/* -- progress --------------------------------------------------------------------------- */

bool recording_progress(void *data, uint64_t done, uint64_t size)
{
	struct recording *rec = data;
	unsigned int percent = size ? (unsigned int)(done * 100 / size) : 0;

	if (rec->tty && percent != rec->shown) {
		rec->shown = percent;
		fprintf(stderr, "\r%s %u %%", rec->doing, percent);
	}
	return !sources_interrupted(rec->set);
}

void recording_progress_end(struct recording *rec)
{
	if (rec->shown)
		fprintf(stderr, "\r\033[K");
	rec->shown = 0;
}

/* -- the closing lines ---------------------------------------------------------------- */

static void report_program(struct recording *rec, size_t i)
{
	const struct inject_program *program = inject_program(rec->inj, i);
	struct inject_stats stats;
	const char *sep = "";
	size_t m;

	inject_program_stats(rec->inj, i, &stats);
	if (rec->quiet[i])
		return;
	if (!rec->sources[i]) {
		log_warn("pid %u: %" PRIu64 " samples in managed code stay without names: %s",
			 program->pid, stats.no_code, rec->why[i] ? rec->why[i] : "out of memory");
		return;
	}
	if (program->over_cap)
		log_warn("pid %u: its frames stay without names: it needs more records than any "
			 "program should",
			 program->pid);
	if (rec->why[i])
		log_warn("pid %u: %s", program->pid, rec->why[i]);
	if (!stats.unnamed)
		return;
	buf_clear(&rec->text);
	for (m = CODEMAP_HIT + 1; m < ARRAY_SIZE(stats.missed); m++) {
		if (!stats.missed[m])
			continue;
		buf_printf(&rec->text, "%s%" PRIu64 " %s", sep, stats.missed[m],
			   codemap_miss_text((enum codemap_miss)m));
		sep = ", ";
	}
	log_info("pid %u: %" PRIu64 " samples in the runtime's memory are in no method: %s",
		 program->pid, stats.unnamed, buf_cstr(&rec->text));
}

/* A recorded stream of a process that is not in the recording is a mistake. */
static void report_unused(const struct recording *rec)
{
	const struct source *s;
	size_t i;

	for (s = rec->set->list; s; s = s->next) {
		for (i = 0; s->kind == SOURCE_TRACE && i < inject_n_programs(rec->inj); i++)
			if (inject_program(rec->inj, i)->pid == (uint32_t)s->pid)
				break;
		if (s->kind == SOURCE_TRACE && i == inject_n_programs(rec->inj))
			log_warn("pid %d: has a recorded stream, but no record in %s "
				 "(--trace PID=FILE says whose it is)",
				 (int)s->pid, recording_shown(rec->opts->in, false));
	}
}

void recording_report(struct recording *rec)
{
	const char *where = rec->opts->inject.image_dir ? rec->opts->inject.image_dir
			    : rec->cache                ? buildid_cache_path(rec->cache)
							: NULL;
	struct inject_stats stats;
	bool late = false, known = false;
	uint64_t first, last;
	size_t i, n = 0;

	report_unused(rec);
	inject_get_stats(rec->inj, &stats);
	inject_get_span(rec->inj, &first, &last);
	for (i = 0; rec->sources && i < inject_n_programs(rec->inj); i++) {
		const struct source *s = rec->sources[i];

		report_program(rec, i);
		n += s != NULL;
		known |= s != NULL;
		late |= s && s->kind != SOURCE_TRACE && rec->convert &&
			s->attach_ns > recording_to_map_ns(rec, last);
	}
	if (known && rec->no_times)
		log_warn("names are those of the last known state: %s", rec->no_times);
	else if (late && stats.unnamed)
		log_info("attached after the recording: code that was gone by then has no name "
			 "(clrsym perf attaches before)");
	for (i = 0; i < inject_n_programs(rec->inj) && rec->quiet && rec->quiet[i]; i++)
		;
	if (rec->quiet && i == inject_n_programs(rec->inj) && !n) {
		log_info("%s: no sample is in a .NET program's managed code: nothing to name",
			 rec->opts->dry_run ? "dry run" : recording_shown(rec->opts->out, true));
		return;
	}
	if (rec->opts->inject.map_only) {
		log_info("%s: %" PRIu64 " mappings renamed to //anon",
			 recording_shown(rec->opts->out, true), stats.rewritten);
		return;
	}
	log_info("%s: %" PRIu64 " of %" PRIu64
		 " samples in managed code have a name (%zu process%s, %" PRIu64
		 " code bod%s hit, %" PRIu64 " with their code); %" PRIu64 " image%s%s%s",
		 rec->opts->dry_run ? "dry run" : recording_shown(rec->opts->out, true),
		 stats.managed, stats.managed + stats.unnamed + stats.no_code, n,
		 n == 1 ? "" : "es", stats.hit, stats.hit == 1 ? "y" : "ies", stats.with_bytes,
		 stats.images, stats.images == 1 ? "" : "s", where ? " in " : "",
		 where ? escape_terminal(where, strlen(where)) : "");
}

bool recording_is_hopeless(struct recording *rec)
{
	size_t i, first = SIZE_MAX, n = 0;
	char more[64] = "";

	for (i = 0; rec->sources && i < inject_n_programs(rec->inj); i++) {
		if (rec->sources[i])
			return false;
		if (rec->quiet[i])
			continue;
		first = MIN(first, i);
		n++;
	}
	if (!n)
		return false;
	if (n > 1)
		snprintf(more, sizeof(more), " (and %zu other%s)", n - 1, n == 2 ? "" : "s");
	log_error("pid %u%s: nothing can be named: %s", inject_program(rec->inj, first)->pid, more,
		  rec->why[first] ? rec->why[first] : "out of memory");
	return true;
}
