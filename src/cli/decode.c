/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clrsym decode: a trace stream for people and for machines.
 *
 * Every event becomes one JSON object; the text form is printed from the same object. A file is
 * printed in the order of its timestamps (the runtime writes thread by thread), a pipe in the order
 * of the stream. The summary comes last.
 */
#include "cli/cli.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "base/caps.h"
#include "base/escape.h"
#include "base/log.h"
#include "cli/answer.h"
#include "cli/event.h"
#include "target/feed.h"

struct line {
	uint64_t ts;
	size_t at, len; /* in the text */
};

/* How often each kind of event came, by its metadata record. */
struct kind_count {
	const struct nettrace_metadata *metadata;
	const struct clr_layout *layout;
	uint64_t n;
};

struct decode {
	bool json, sorted, methods;
	struct nettrace *nt;
	struct clr_decoder clr;
	struct buf text; /* of the lines, when they are sorted */
	struct line *lines;
	size_t n_lines, lines_size;
	struct kind_count *counts;
	size_t n_counts, counts_size;
	uint64_t short_payloads;
};

static void decode_deinit(struct decode *d)
{
	nettrace_free(d->nt);
	clr_decoder_deinit(&d->clr);
	buf_deinit(&d->text);
	free(d->lines);
	free(d->counts);
}

/* Doubles an array when it is full. Returns 0 or -ENOMEM. */
static int grow(void *arrayp, size_t n, size_t *sizep, size_t item)
{
	size_t size = MAX(*sizep * 2, (size_t)256);
	void *p;

	if (n < *sizep)
		return 0;
	p = realloc(*(void **)arrayp, size * item);
	if (!p)
		return -ENOMEM;
	*(void **)arrayp = p;
	*sizep = size;
	return 0;
}

/* -- one line ------------------------------------------------------------------------- */

static void text_value(struct buf *out, const json_t *v)
{
	const json_t *item;
	size_t i;

	if (json_is_string(v)) {
		escape_line(out, json_string_value(v), json_string_length(v), SIZE_MAX);
	} else if (json_is_integer(v)) {
		buf_printf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
	} else if (json_is_boolean(v)) {
		buf_puts(out, json_is_true(v) ? "yes" : "no");
	} else if (json_is_array(v)) {
		json_array_foreach((json_t *)(uintptr_t)v, i, item)
		{
			if (i)
				buf_putc(out, json_is_array(item) ? ' ' : ':');
			text_value(out, item);
		}
	}
}

/* "seconds word key=value ...", each value escaped for one line. */
static void text_line(struct buf *out, const json_t *o, uint64_t ts)
{
	const char *event = json_string_value(json_object_get(o, "event"));
	const char *key;
	json_t *v;

	buf_printf(out, "%" PRIu64 ".%09" PRIu64 " %s", ts / SEC_NS(1), ts % SEC_NS(1),
		   event ? event : json_string_value(json_object_get(o, "ev")));
	json_object_foreach((json_t *)(uintptr_t)o, key, v)
	{
		if (strcmp(key, "ev") == 0 || strcmp(key, "event") == 0 || strcmp(key, "ts") == 0)
			continue;
		buf_printf(out, " %s=", key);
		text_value(out, v);
	}
}

static int dump_to_buf(const char *s, size_t n, void *data)
{
	return buf_append(data, s, n) < 0 ? -1 : 0;
}

static int decode_print(struct decode *d, const json_t *o, uint64_t ts)
{
	size_t at;
	int r;

	if (!d->sorted)
		buf_clear(&d->text);
	at = d->text.len;
	if (d->json)
		json_dump_callback(o, dump_to_buf, &d->text, EVENT_JSON_FLAGS);
	else
		text_line(&d->text, o, ts);
	buf_putc(&d->text, '\n');
	if (d->text.error)
		return d->text.error;
	if (!d->sorted) {
		fwrite(d->text.data, 1, d->text.len, stdout);
		return 0;
	}
	r = grow(&d->lines, d->n_lines, &d->lines_size, sizeof(*d->lines));
	if (r < 0)
		return r;
	d->lines[d->n_lines++] = (struct line){ ts, at, d->text.len - at };
	return 0;
}

static int line_cmp(const void *a, const void *b)
{
	const struct line *x = a, *y = b;

	if (x->ts != y->ts)
		return x->ts < y->ts ? -1 : 1;
	return x->at < y->at ? -1 : x->at > y->at;
}

static void decode_print_sorted(struct decode *d)
{
	size_t i;

	qsort(d->lines, d->n_lines, sizeof(*d->lines), line_cmp);
	for (i = 0; i < d->n_lines; i++)
		fwrite(d->text.data + d->lines[i].at, 1, d->lines[i].len, stdout);
}

/* -- events --------------------------------------------------------------------------- */

static int on_metadata(void *data, struct nettrace_metadata *metadata)
{
	struct decode *d = data;
	int r = grow(&d->counts, d->n_counts, &d->counts_size, sizeof(*d->counts));

	if (r < 0)
		return r;
	d->counts[d->n_counts] = (struct kind_count){
		.metadata = metadata,
		.layout = clr_layout_find(metadata->provider, metadata->event_id),
	};
	/* an index, for the array moves; 0 means none */
	metadata->user = (const void *)(uintptr_t)++d->n_counts;
	return 0;
}

static int on_event(void *data, const struct nettrace_event *nev)
{
	struct decode *d = data;
	struct kind_count *count = &d->counts[(uintptr_t)nev->metadata->user - 1];
	struct clr_event ev;
	json_t *o;
	int r;

	count->n++;
	if (!count->layout)
		return 0;
	r = clr_decode(&d->clr, count->layout, nev->metadata->version, nev->payload,
		       nev->payload_size, &ev);
	if (r < 0)
		return r;
	if (r) {
		d->short_payloads++;
		return 0;
	}
	if (!event_has_line(&ev, d->json))
		return 0;
	o = event_json(nev, count->layout, &ev);
	if (!o)
		return -ENOMEM;
	r = decode_print(d, o, nev->timestamp);
	json_decref(o);
	return r;
}

/* -- the summary ---------------------------------------------------------------------- */

static void decode_summary(struct decode *d)
{
	const struct nettrace_stats *stats = nettrace_get_stats(d->nt);
	const struct nettrace_header *header = nettrace_get_header(d->nt);
	json_t *counts = json_object(), *o;
	const char *key;
	json_t *v;
	size_t i;

	for (i = 0; i < d->n_counts; i++) {
		const struct nettrace_metadata *m = d->counts[i].metadata;
		char name[512];

		if (!d->counts[i].n)
			continue;
		snprintf(name, sizeof(name), "%s/%u/v%u", m->provider, m->event_id, m->version);
		json_object_set_new(
			counts, name,
			json_integer((json_int_t)d->counts[i].n +
				     json_integer_value(json_object_get(counts, name))));
	}
	if (d->json) {
		o = json_pack("{s:s, s:I, s:I, s:I, s:i, s:i, s:I, s:O}", "ev", "summary", "events",
			      (json_int_t)stats->events, "lost", (json_int_t)stats->lost, "bytes",
			      (json_int_t)stats->bytes, "pointer_size", (int)header->pointer_size,
			      "processors", (int)header->n_processors, "qpc_freq",
			      (json_int_t)header->qpc_frequency, "counts", counts);
		if (o)
			json_dumpf(o, stdout, EVENT_JSON_FLAGS);
		putchar('\n');
		json_decref(o);
	} else {
		printf("%" PRIu64 " events, %" PRIu64 " lost, %" PRIu64 " bytes\n", stats->events,
		       stats->lost, stats->bytes);
		json_object_foreach(counts, key, v)
		{
			printf("%10" JSON_INTEGER_FORMAT "  %s\n", json_integer_value(v),
			       escape_terminal(key, strlen(key)));
		}
	}
	json_decref(counts);
}

/* -- the final map -------------------------------------------------------------------- */

static int print_methods(const char *path, bool json)
{
	_cleanup_(codemap_freep) struct codemap *map = NULL;
	_cleanup_(feed_freep) struct feed *feed = NULL;
	const struct codemap_body *body;
	struct codemap_info info;
	int r;

	r = codemap_new(&map, NULL);
	if (r == 0)
		r = answer_read_trace(map, path, &feed);
	if (r)
		return r;
	for (body = codemap_next(map, 0); body; body = codemap_next(map, info.start + 1)) {
		codemap_body_info(map, body, &info);
		answer_print_body(&info, json);
	}
	return 0;
}

/* -- the verb ------------------------------------------------------------------------- */

static int feed_decoder(void *data, const void *bytes, size_t n)
{
	struct decode *d = data;

	return nettrace_feed(d->nt, bytes, n);
}

static int decode_events(struct decode *d, const char *path)
{
	static const struct nettrace_callbacks callbacks = {
		.metadata = on_metadata,
		.event = on_event,
	};
	int r;

	clr_decoder_init(&d->clr);
	buf_init(&d->text, SIZE_MAX);
	r = nettrace_new(&d->nt, &callbacks, d);
	if (r < 0)
		return r;
	r = cli_read_trace(path, feed_decoder, d);
	decode_print_sorted(d);
	if (nettrace_get_header(d->nt))
		decode_summary(d);
	if (r >= 0)
		r = cli_trace_end(path, d->nt);
	if (d->short_payloads)
		log_warn("%s: %" PRIu64 " events were shorter than their layout and skipped",
			 escape_terminal(path, strlen(path)), d->short_payloads);
	return r;
}

static void help(void)
{
	printf("Usage: clrsym decode [--json] [--methods] FILE\n"
	       "Prints the events of a trace stream (nettrace; '-' reads stdin).\n\n"
	       "      --json     one JSON object a line, the summary last\n"
	       "      --methods  the code map at the end of the stream instead of the events\n"
	       "\nWith --methods: start (hex), size (hex), tier, method.\n" CLI_EXIT_HELP
	       "1, too, if the stream is damaged: what came before it is printed.\n");
}

int cli_decode(int argc, char **argv)
{
	static const struct option options[] = {
		{ "json", no_argument, NULL, 'j' },
		{ "methods", no_argument, NULL, 'm' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	_cleanup_(decode_deinit) struct decode d = { 0 };
	struct stat st;
	const char *path;
	int c, r;

	while ((c = getopt_long(argc, argv, "h", options, NULL)) >= 0) {
		switch (c) {
		case 'j': d.json = true; break;
		case 'm': d.methods = true; break;
		case 'h': help(); return cli_flush();
		default: return cli_usage_hint("decode");
		}
	}
	if (argc - optind != 1)
		return cli_usage_error("decode", "one FILE, or '-'");
	path = argv[optind];
	if (d.methods) {
		r = print_methods(path, d.json);
	} else {
		d.sorted = strcmp(path, "-") != 0 ||
			   (fstat(STDIN_FILENO, &st) == 0 && S_ISREG(st.st_mode));
		r = decode_events(&d, path);
	}
	if (r < 0)
		log_error("%s: %s", escape_terminal(path, strlen(path)), strerror(-r));
	if (cli_flush() != EXIT_DONE || r)
		return EXIT_FAILED;
	return EXIT_DONE;
}
