/* SPDX-License-Identifier: Apache-2.0 */
/* clrsym modules: the application domains, assemblies and modules of a process. */
#include "cli/cli.h"
#include "cli/listing.h"

#include <inttypes.h>
#include <string.h>

#include "base/caps.h"
#include "base/escape.h"
#include "cli/answer.h"
#include "query/text.h"

struct listing {
	bool json;
	struct buf line;
};

static void put_member(struct buf *line, const char *name, const char *s)
{
	buf_printf(line, ",\"%s\":", name);
	if (s[0])
		text_put_string(line, s, strlen(s));
	else
		buf_puts(line, "null");
}

static void put_json(struct buf *line, const struct ask_module *m)
{
	buf_puts(line, "{\"kind\":");
	text_put_string(line, m->kind, strlen(m->kind));
	buf_puts(line, ",\"id\":");
	text_put_hex(line, m->id);
	buf_puts(line, ",\"parent\":");
	text_put_hex(line, m->parent);
	buf_puts(line, ",\"name\":");
	text_put_string(line, m->name, strlen(m->name));
	put_member(line, "native_path", m->native_path);
	put_member(line, "pdb_path", m->pdb_path);
	put_member(line, "pdb_id", m->pdb_id);
	buf_puts(line, ",\"pdb_age\":");
	if (m->pdb_id[0])
		text_put_u64(line, m->pdb_age);
	else
		buf_puts(line, "null");
	buf_printf(line, ",\"flags\":%" PRIu32 ",\"load\":%" PRIu64 ",\"unload\":", m->flags,
		   m->load);
	if (m->unload != UINT64_MAX)
		text_put_u64(line, m->unload);
	else
		buf_puts(line, "null");
	buf_putc(line, '}');
}

static void put_row(struct buf *line, const struct ask_module *m)
{
	buf_printf(line, "%-8s  %13.6f ", escape_terminal(m->kind, strlen(m->kind)),
		   (double)m->load / SEC_NS(1));
	if (m->unload != UINT64_MAX)
		buf_printf(line, " %13.6f", (double)m->unload / SEC_NS(1));
	else
		buf_printf(line, " %13s", "-");
	buf_printf(line, "  %-36s  ",
		   m->pdb_id[0] ? escape_terminal(m->pdb_id, strlen(m->pdb_id)) : "-");
	escape_line(line, m->name, strlen(m->name), SIZE_MAX);
}

static int on_module(void *data, const struct ask_module *m)
{
	struct listing *listing = data;

	if (listing->json)
		put_json(&listing->line, m);
	else
		put_row(&listing->line, m);
	return answer_print_line(&listing->line);
}

static void help(void)
{
	printf("Usage: clrsym modules [OPTION]... PID\n"
	       "Lists the application domains, assemblies and modules of a .NET process, with the "
	       "times\n"
	       "(s of CLOCK_MONOTONIC) at which they were loaded, or first seen, and "
	       "unloaded.\n\n" CLI_PID_HELP
	       "      --json              one JSON object a line\n" DAEMON_OPTIONS_HELP
	       "\nColumns: KIND (domain, assembly, module), LOADED and UNLOADED (- not), PDB (its "
	       "id,\nwhich symbol servers go by), NAME (of a module the path of its IL "
	       "file).\n" CLI_EXIT_HELP);
}

int cli_modules(int argc, char **argv)
{
	_cleanup_(ask_deinit) struct ask ask = { 0 };
	struct listing listing = { .line.cap = SIZE_MAX };
	struct ask_process *process;
	struct listing_args args;
	int r;

	r = listing_take("modules", argc, argv, false, help, &ask.daemon, &args);
	if (r >= 0)
		return r;
	listing.json = args.json;
	r = ask_open(&ask, args.pid, false, &process);
	if (r == 0 && !listing.json)
		printf("%-8s  %13s  %13s  %-36s  NAME\n", "KIND", "LOADED", "UNLOADED", "PDB");
	if (r == 0)
		r = ask_modules(process, on_module, &listing);
	buf_deinit(&listing.line);
	return cli_end(r);
}
