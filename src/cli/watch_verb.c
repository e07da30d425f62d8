/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clrsym watch: the changes to a process's code as they come, until a signal or its end; both are
 * no failure. What the process had before is not told: `clrsym methods` tells that.
 */
#include "cli/cli.h"
#include "cli/listing.h"

#include <string.h>

#include "base/escape.h"
#include "base/log.h"
#include "cli/answer.h"
#include "query/text.h"

struct watching {
	bool json;
	struct buf line;
};

static void put_json(struct buf *line, const char *change, const struct query_method *m)
{
	buf_puts(line, "{\"change\":");
	text_put_string(line, change, strlen(change));
	if (m) {
		buf_putc(line, ',');
		query_put_method(line, m);
	}
	buf_putc(line, '}');
}

/* A row as in `clrsym methods`, with the change and the time of that. */
static void put_text(struct buf *line, const char *change, const struct query_method *m)
{
	uint64_t time = 0;

	if (m)
		time = m->unload != UINT64_MAX && strcmp(change, "load") != 0 ? m->unload : m->load;
	answer_put_time(line, time);
	buf_printf(line, "  %-6s ", escape_terminal(change, strlen(change)));
	if (m)
		answer_put_row(line, m, false);
}

static int print_head(void)
{
	printf("%13s  %-6s ", "TIME", "CHANGE");
	answer_print_head(false);
	return fflush(stdout) ? 1 : 0;
}

static int on_change(void *data, const char *change, const struct query_method *m)
{
	struct watching *watching = data;
	int r;

	if (watching->json)
		put_json(&watching->line, change, m);
	else
		put_text(&watching->line, change, m);
	r = answer_print_line(&watching->line);
	return r == 0 && fflush(stdout) ? 1 : r;
}

static void help(void)
{
	printf("Usage: clrsym watch [OPTION]... PID\n"
	       "Prints the changes to a .NET process's code as they come: load, unload, alter "
	       "(what "
	       "was\n"
	       "known of a body was corrected), and resync (changes were left out: see clrsym "
	       "methods).\n\n" CLI_PID_HELP
	       "      --json              one JSON object a line\n" DAEMON_OPTIONS_HELP
	       "\nColumns: TIME (s of CLOCK_MONOTONIC), CHANGE, and as in clrsym "
	       "methods.\n" CLI_EXIT_HELP "0, too, after ^C and at the end of the process.\n");
}

int cli_watch(int argc, char **argv)
{
	_cleanup_(ask_deinit) struct ask ask = { 0 };
	struct watching watching = { .line.cap = SIZE_MAX };
	struct ask_process *process;
	struct listing_args args;
	int r;

	r = listing_take("watch", argc, argv, false, help, &ask.daemon, &args);
	if (r >= 0)
		return r;
	watching.json = args.json;
	r = ask_open(&ask, args.pid, false, &process);
	if (r == 0 && !watching.json)
		r = print_head();
	if (r == 0) {
		log_info("pid %d: watching", (int)args.pid);
		r = ask_watch(process, on_change, &watching);
	}
	buf_deinit(&watching.line);
	return cli_end(r);
}
