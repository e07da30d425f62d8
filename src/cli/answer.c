/* SPDX-License-Identifier: Apache-2.0 */
/* Printing what the code map says. */
#include "cli/answer.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include <jansson.h>

#include "cli/cli.h"
#include "cli/event.h"

static int to_feed(void *data, const void *bytes, size_t n)
{
	return feed_bytes(data, bytes, n, 0);
}

static void on_lost(void *data, uint64_t n UNUSED, uint64_t from, uint64_t to)
{
	codemap_gap(data, from, to);
}

int answer_read_trace(struct codemap *map, const char *path, struct feed **feedp)
{
	struct feed_options opts = { .il_maps = true };
	int r;

	r = feed_new(feedp, map, &opts);
	if (r < 0)
		return r;
	feed_on_lost(*feedp, on_lost, map);
	r = cli_read_trace(path, to_feed, *feedp);
	return r < 0 ? r : cli_trace_end(path, feed_nettrace(*feedp));
}

static void put_info(json_t *o, const struct codemap_info *info)
{
	json_object_set_new(o, "method_id", event_hex(info->method_id));
	json_object_set_new(o, "ns", json_stringn(info->name.ns, info->name.ns_len));
	json_object_set_new(o, "name", json_stringn(info->name.name, info->name.name_len));
	json_object_set_new(o, "sig", json_stringn(info->name.sig, info->name.sig_len));
	json_object_set_new(o, "module",
			    info->module_path
				    ? json_stringn(info->module_path, info->module_path_len)
				    : json_null());
	json_object_set_new(o, "tier", json_string(names_tier(info->flags)));
	json_object_set_new(o, "start", event_hex(info->start));
	json_object_set_new(o, "size", json_integer(info->size));
}

static void print_json(json_t *o)
{
	if (!o)
		return;
	json_dumpf(o, stdout, EVENT_JSON_FLAGS);
	putchar('\n');
	json_decref(o);
}

void answer_print_body(const struct codemap_info *info, bool json)
{
	_cleanup_buf_ struct buf name = { .cap = SIZE_MAX };

	if (json) {
		json_t *o = json_object();

		put_info(o, info);
		print_json(o);
		return;
	}
	names_append(&name, &info->name, NAMES_FULL, false);
	printf("%" PRIx64 " %x %s %s\n", info->start, info->size, names_tier(info->flags),
	       buf_cstr(&name));
}

bool answer_print(const struct codemap *map, uint64_t addr, uint64_t time, bool json)
{
	_cleanup_buf_ struct buf name = { .cap = SIZE_MAX };
	const struct codemap_body *body;
	struct codemap_info info;
	enum codemap_miss miss = CODEMAP_HIT;
	json_t *o = NULL;
	uint32_t il;

	body = time ? codemap_lookup_at(map, addr, time, &miss) : codemap_lookup(map, addr, &miss);
	if (body)
		codemap_body_info(map, body, &info);
	if (json) {
		o = json_object();
		json_object_set_new(o, "addr", event_hex(addr));
		json_object_set_new(o, "time", time ? json_integer((json_int_t)time) : json_null());
		if (!body) {
			json_object_set_new(o, "reason", json_string(codemap_miss_text(miss)));
		} else {
			put_info(o, &info);
			json_object_set_new(o, "offset",
					    json_integer((json_int_t)(addr - info.start)));
			/* the special offsets (prolog, epilog, no mapping) are no place in the IL
			 */
			if (codemap_il_lookup(map, body, (uint32_t)(addr - info.start), &il) == 0 &&
			    il < 0xfffffffdu)
				json_object_set_new(o, "il_offset", json_integer(il));
		}
		print_json(o);
	} else if (body) {
		names_append(&name, &info.name, NAMES_FULL, false);
		printf("%" PRIx64 " %s+0x%" PRIx64 " [%s]\n", addr, buf_cstr(&name),
		       addr - info.start, names_tier(info.flags));
	} else {
		printf("%" PRIx64 " ? (%s)\n", addr, codemap_miss_text(miss));
	}
	return body;
}
