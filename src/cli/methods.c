/* SPDX-License-Identifier: Apache-2.0 */
/* clrsym methods: the code bodies of a process, by address. */
#include "cli/cli.h"

#include <getopt.h>
#include <inttypes.h>
#include <string.h>

#include "base/caps.h"
#include "base/escape.h"
#include "base/log.h"
#include "base/number.h"
#include "cli/answer.h"

struct listing {
	bool json, retired;
	struct buf line;
};

/* CLOCK_MONOTONIC in seconds, as perf and bpftrace print it. */
static void put_time(struct buf *line, uint64_t ns)
{
	buf_printf(line, " %6" PRIu64 ".%06" PRIu64, ns / SEC_NS(1), ns % SEC_NS(1) / 1000);
}

static void put_row(struct buf *line, const struct query_method *m, bool times)
{
	buf_printf(line, "%16" PRIx64 " %7" PRIu32, m->start, m->size);
	if (times && m->load)
		put_time(line, m->load);
	else if (times)
		buf_printf(line, " %13s", "-");
	if (times && m->unload != UINT64_MAX)
		put_time(line, m->unload);
	else if (times)
		buf_printf(line, " %13s", "-");
	buf_printf(line, "  %-16s ", answer_tier(m));
	escape_line(line, m->function, m->function_len, SIZE_MAX);
}

static int on_method(void *data, const struct query_method *m)
{
	struct listing *listing = data;

	if (listing->json) {
		buf_putc(&listing->line, '{');
		query_put_method(&listing->line, m);
		buf_putc(&listing->line, '}');
	} else {
		put_row(&listing->line, m, listing->retired);
	}
	return answer_print_line(&listing->line);
}

static void print_head(bool times)
{
	printf("%16s %7s", "START", "SIZE");
	if (times)
		printf(" %13s %13s", "LOADED", "UNLOADED");
	printf("  %-16s METHOD\n", "TIER");
}

static void help(void)
{
	printf("Usage: clrsym methods [OPTION]... PID\n"
	       "Lists the code bodies of a .NET process by address.\n\n"
	       "      --retired           also those that were unloaded and are still remembered, "
	       "with\n"
	       "                          times (s of CLOCK_MONOTONIC; - before anything was "
	       "known)\n"
	       "      --json              one JSON object a line\n" DAEMON_OPTIONS_HELP);
}

int cli_methods(int argc, char **argv)
{
	enum { OPT_RETIRED = 256 };
	static const struct option options[] = {
		{ "retired", no_argument, NULL, OPT_RETIRED },
		{ "json", no_argument, NULL, 'j' },
		DAEMON_OPTIONS,
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	_cleanup_(ask_deinit) struct ask ask = { 0 };
	struct listing listing = { .line.cap = SIZE_MAX };
	struct ask_process *process;
	pid_t pid;
	int c, r;

	while ((c = getopt_long(argc, argv, "h", options, NULL)) >= 0) {
		if (daemon_option_take(&ask.daemon, c, optarg))
			continue;
		switch (c) {
		case OPT_RETIRED: listing.retired = true; break;
		case 'j': listing.json = true; break;
		case 'h': help(); return cli_flush();
		default: return cli_usage_hint("methods");
		}
	}
	if (argc - optind != 1 || !parse_pid(argv[optind], &pid))
		return cli_usage_error("methods", "one PID");
	r = ask_open(&ask, pid, false, &process);
	if (r == 0 && !listing.json)
		print_head(listing.retired);
	if (r == 0)
		r = ask_methods(process, listing.retired, on_method, &listing);
	buf_deinit(&listing.line);
	return cli_end(r);
}
