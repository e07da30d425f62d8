/* SPDX-License-Identifier: Apache-2.0 */
/* perf record's options: which take a value decides where the program to run begins. */
#include "cli/perfargs.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/util.h"

/* As of perf 6.12. Long options with values that may only be joined (--threads=core) need no
 * mention. */
static const char short_values[] = "eptrCcoFmDGkju";
/* Values that may only be joined: the rest of the word is no flag. */
static const char short_joined[] = "zSI";
static const char *const long_values[] = {
	"event",
	"filter",
	"pid",
	"tid",
	"realtime",
	"cpu",
	"count",
	"output",
	"freq",
	"mmap-pages",
	"call-graph",
	"delay",
	"cgroup",
	"branch-filter",
	"clockid",
	"uid",
	"clang-path",
	"clang-opt",
	"vmlinux",
	"affinity",
	"mmap-flush",
	"max-size",
	"control",
	"num-thread-synthesize",
	"synth",
	"off-cpu-thresh",
	"switch-output-event",
	"switch-max-files",
	"proc-map-timeout",
};

static bool takes_value(const char *name, size_t len)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(long_values); i++)
		if (strlen(long_values[i]) == len && memcmp(long_values[i], name, len) == 0)
			return true;
	return false;
}

static void take(struct perfargs *args, char option, const char *value)
{
	switch (option) {
	case 'o': args->output = value; break;
	case 'k': args->clock = value; break;
	case 'p': args->pids = value; break;
	case 't': args->tids = value; break;
	case 'a':
	case 'C':
	case 'u':
	case 'G': args->system_wide = true; break;
	default: break;
	}
}

static char short_form(const char *name, size_t len)
{
	static const struct {
		const char *name;
		char option;
	} forms[] = {
		{ "output", 'o' },   { "clockid", 'k' }, { "pid", 'p' }, { "tid", 't' },
		{ "all-cpus", 'a' }, { "cpu", 'C' },     { "uid", 'u' }, { "cgroup", 'G' },
	};
	size_t i;

	for (i = 0; i < ARRAY_SIZE(forms); i++)
		if (strlen(forms[i].name) == len && memcmp(forms[i].name, name, len) == 0)
			return forms[i].option;
	return 0;
}

/* Flags may be bundled; the rest of the word behind one that takes a value is the value. */
static int parse_short(struct perfargs *args, int i, int argc, char **argv)
{
	const char *s;

	for (s = argv[i] + 1; *s; s++) {
		const char *value = s + 1;

		if (strchr(short_joined, *s))
			break;
		if (!strchr(short_values, *s)) {
			take(args, *s, NULL);
			continue;
		}
		if (!*value)
			value = i + 1 < argc ? argv[++i] : NULL;
		take(args, *s, value);
		break;
	}
	return i;
}

static int parse_long(struct perfargs *args, int i, int argc, char **argv)
{
	const char *name = argv[i] + 2;
	const char *equals = strchr(name, '=');
	size_t len = equals ? (size_t)(equals - name) : strlen(name);
	const char *value = equals ? equals + 1 : NULL;

	if (!equals && takes_value(name, len))
		value = i + 1 < argc ? argv[++i] : NULL;
	take(args, short_form(name, len), value);
	return i;
}

void perfargs_parse(struct perfargs *args, int argc, char **argv)
{
	int i;

	*args = (struct perfargs){ 0 };
	for (i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--") == 0) {
			i++;
			break;
		}
		if (argv[i][0] != '-' || !argv[i][1])
			break;
		i = argv[i][1] == '-' ? parse_long(args, i, argc, argv)
				      : parse_short(args, i, argc, argv);
	}
	args->command = MIN(i, argc);
	/* nothing said: perf records the whole machine */
	if (args->command == argc && !args->pids && !args->tids)
		args->system_wide = true;
}

bool perfargs_clockid(const char *name, int32_t *clockidp)
{
	static const struct {
		const char *name;
		int32_t clockid;
	} clocks[] = {
		{ "monotonic", CLOCK_MONOTONIC },
		{ "mono", CLOCK_MONOTONIC },
		{ "monotonic_raw", CLOCK_MONOTONIC_RAW },
		{ "raw", CLOCK_MONOTONIC_RAW },
		{ "realtime", CLOCK_REALTIME },
		{ "real", CLOCK_REALTIME },
		{ "boottime", CLOCK_BOOTTIME },
		{ "boot", CLOCK_BOOTTIME },
		{ "tai", CLOCK_TAI },
	};
	char *end;
	long n;
	size_t i;

	n = strtol(name, &end, 10);
	if (end != name && !*end) {
		*clockidp = (int32_t)n;
		return true;
	}
	if (strncasecmp(name, "CLOCK_", 6) == 0)
		name += 6;
	for (i = 0; i < ARRAY_SIZE(clocks); i++) {
		if (strcasecmp(name, clocks[i].name) == 0) {
			*clockidp = clocks[i].clockid;
			return true;
		}
	}
	return false;
}
