/* SPDX-License-Identifier: Apache-2.0 */
/* Whether what was recorded is what runs: see trust.h. */
#include "cli/trust.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

#include "base/caps.h"
#include "base/clock.h"

/* Start times are told in clock ticks of 10 ms. */
#define TRUST_START_SLACK_NS MS_NS(20)
/* Wall clocks are set, a little; a boot takes longer than this. */
#define TRUST_WALL_SLACK_NS SEC_NS(5)

/* Where the kernel put itself at this boot; 0 when it does not tell us. */
static uint64_t kernel_text(void)
{
	_cleanup_fclose_ FILE *f = fopen("/proc/kallsyms", "re");
	_cleanup_free_ char *line = NULL;
	size_t size = 0;

	while (f && getline(&line, &size, f) > 0) {
		uint64_t addr;
		char name[16], type;

		if (sscanf(line, "%" SCNx64 " %c %15s", &addr, &type, name) == 3 &&
		    strcmp(name, "_text") == 0)
			return addr;
	}
	return 0;
}

static int64_t clock_ns(clockid_t id)
{
	struct timespec ts;

	clock_gettime(id, &ts);
	return (int64_t)ts.tv_sec * (int64_t)SEC_NS(1) + ts.tv_nsec;
}

/* What wall time and CLOCK_MONOTONIC are apart changes only while the machine sleeps. */
static bool other_wall(const struct perfdata_clock *clock)
{
	int64_t mono = clock_ns(CLOCK_MONOTONIC);
	int64_t slept = clock_ns(CLOCK_BOOTTIME) - mono;
	int64_t moved;

	if (!clock->has_pair || !clock->use_clockid || clock->clockid != CLOCK_MONOTONIC)
		return false;
	moved = clock_ns(CLOCK_REALTIME) - mono - (int64_t)(clock->wall_ns - clock->clock_ns);
	return moved < -(int64_t)TRUST_WALL_SLACK_NS ||
	       moved > slept + (int64_t)TRUST_WALL_SLACK_NS;
}

const char *trust_recording(const struct inject *inj, const struct perfdata *main,
			    uint64_t clock_now)
{
	const char *host = perfdata_hostname(main);
	uint64_t first, last, recorded = inject_kernel_start(inj), running;
	struct perfdata_clock clock;
	struct utsname uts;

	if (host && uname(&uts) == 0 && strcmp(host, uts.nodename) != 0)
		return "the recording is of another machine";
	perfdata_get_clock(main, &clock);
	inject_get_span(inj, &first, &last);
	if ((clock_now && last > clock_now) || other_wall(&clock))
		return "the recording was made before this machine was last started";
	running = recorded ? kernel_text() : 0;
	if (running && running != recorded)
		return "the recording was made before this machine was last started, or on another";
	return NULL;
}

/* -- one program ---------------------------------------------------------------------- */

struct match {
	const struct source_mapping *mappings;
	size_t n_mappings;
	unsigned int same, other;
	bool runtime_same, runtime_other;
};

static int match_mapping(void *data, const struct inject_mapping *m)
{
	struct match *match = data;
	const char *slash = strrchr(m->name, '/');
	bool same = false, runtime;
	size_t i;

	if (!slash || *m->name != '/')
		return 0;
	for (i = 0; i < match->n_mappings && !same; i++)
		same = match->mappings[i].addr == m->addr &&
		       strcmp(match->mappings[i].name, slash + 1) == 0;
	runtime = strcmp(slash + 1, "libcoreclr.so") == 0;
	match->same += same;
	match->other += !same;
	match->runtime_same |= runtime && same;
	match->runtime_other |= runtime && !same;
	return 0;
}

const char *trust_program(const struct inject *inj, size_t program, uint64_t first,
			  const struct trust_process *process)
{
	struct match match = {
		.mappings = process->mappings,
		.n_mappings = process->n_mappings,
	};

	if (first && process->start_ns > first + TRUST_START_SLACK_NS)
		return "another process has that pid now: it started later";
	inject_each_mapping(inj, program, match_mapping, &match);
	/* libraries that were closed since may be missing; the runtime never is */
	if (match.runtime_other && !match.runtime_same)
		return "it runs another program now (exec): the runtime's place is another";
	if (!match.runtime_same && match.same + match.other > 0 && match.same <= match.other)
		return "it runs another program now: its mappings are others";
	if (!match.same && (!first || process->over))
		return "nothing in the recording tells that it is the same program";
	return NULL;
}
