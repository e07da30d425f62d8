/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The perf map text form: see mapfile.h. The writer's only position is an address, so a
 * map that changes under it needs no care: it asks for the next start at or after the end
 * of the last line.
 */
#include "codemap/mapfile.h"

#include <errno.h>
#include <string.h>

#include "base/caps.h"
#include "base/utf.h"

/* What counting a left-out body is worth of a step's budget: about a line's time. */
#define LEFT_OUT_COST 16u
#define SHORT_PREFIX  "[method] "

void codemap_map_writer_init(struct codemap_map_writer *w, const struct codemap_map_options *opts)
{
	*w = (struct codemap_map_writer){ .opts = *opts };
	if (!w->opts.max_bytes)
		w->opts.max_bytes = DEFAULT_MAP_BYTES;
	/* a name and its arguments may be 64 KiB each, and each bad byte becomes three */
	buf_init(&w->name, 3 * 3 * (CAP_NAME_LENGTH + 1));
}

void codemap_map_writer_deinit(struct codemap_map_writer *w)
{
	buf_deinit(&w->name);
}

/* The name of a line, in w->name: cut so that a tier stays whole. */
static int make_name(struct codemap_map_writer *w, const struct names_method *m)
{
	const char *tier = w->opts.tiers ? names_tier(m->flags) : "";
	size_t tier_len = w->opts.tiers ? strlen(tier) + 2 : 0;
	int r;

	buf_clear(&w->name);
	r = names_append(&w->name, m, w->opts.style, false);
	if (r == 0 && w->name.len + tier_len < FLOOR_MAP_NAME) {
		buf_clear(&w->name);
		buf_puts(&w->name, SHORT_PREFIX);
		r = names_append(&w->name, m, w->opts.style, false);
	}
	if (r < 0)
		return r;
	w->name.len = utf8_cut((const char *)w->name.data, w->name.len, CAP_MAP_NAME - tier_len);
	return tier_len ? buf_printf(&w->name, "[%s]", tier) : 0;
}

int codemap_map_writer_step(struct codemap_map_writer *w, const struct codemap *map,
			    struct buf *out, size_t budget)
{
	const struct codemap_body *body;
	struct codemap_info info;
	size_t spent = 0, before, line;
	int r;

	while (!w->done && spent < budget) {
		body = codemap_next(map, w->next);
		if (!body) {
			w->done = true;
			break;
		}
		codemap_body_info(map, body, &info);
		if (w->full) {
			w->left_out++;
			w->next = info.start + info.size;
			spent += LEFT_OUT_COST;
			continue;
		}
		r = make_name(w, &info.name);
		if (r < 0)
			return r;
		before = out->len;
		buf_printf(out, "%llx %x ", (unsigned long long)info.start, info.size);
		buf_append(out, w->name.data, w->name.len);
		r = buf_putc(out, '\n');
		if (r < 0) {
			out->len = before;
			return r;
		}
		line = out->len - before;
		if (w->bytes + line > w->opts.max_bytes) {
			out->len = before;
			w->full = true;
			continue;
		}
		w->bytes += line;
		w->lines++;
		spent += line;
		w->next = info.start + info.size;
	}
	return 0;
}
