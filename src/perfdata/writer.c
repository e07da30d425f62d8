/* SPDX-License-Identifier: Apache-2.0 */
/*
 * perfdata: writing.
 *
 *	input    head · records · tail           head: header, ids, attrs
 *	output   head · new records · tail       tail: table of features, features, anything else
 *
 * Head and tail are copied as they are, known or not, so that a file with nothing changed comes
 * out byte for byte. When the records have become longer or shorter the tail lies elsewhere, and
 * the absolute offsets that lead into it are patched in place afterwards; header.c has made
 * sure that what is patched is part of nothing else. The index of AUX data leads into the records:
 * for it the writer remembers how far each AUXTRACE record has moved.
 *
 * The output of -z input is plain, so the feature that says "compressed" goes: its bit, its place
 * in the table and its section. And perf reads no file without a size of the data: what perf left
 * unfinished when it was killed gets one, and loses the bits of the features that it never wrote.
 */
#include <errno.h>
#include <string.h>

#include "base/caps.h"
#include "perfdata/state.h"

#define WRITER_BUFFER ((size_t)PERF_WINDOW)
#define INDEX_CHUNK   8192u
#define INDEX_ENTRY   16u /* u64 offset, u64 size */

/* AUXTRACE records from `from` on are at `to` and following. */
struct move {
	uint64_t from, to;
};

struct perfdata_writer {
	struct perfdata *p;
	int fd;
	uint8_t *buf;
	size_t len;
	uint64_t written; /* without what is in buf */
	struct move *moves;
	size_t n_moves, moves_room;
	/* the tail */
	uint64_t tail_from, tail_to;
	struct section cuts[2]; /* parts of it that are left out */
	unsigned int n_cuts;
};

/* -- Output --------------------------------------------------------------------------- */

static int writer_out(struct perfdata_writer *w, const uint8_t *bytes, size_t n)
{
	while (n) {
		ssize_t r = write(w->fd, bytes, n);

		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0)
			return -errno;
		w->written += (uint64_t)r;
		bytes += r;
		n -= (size_t)r;
	}
	return 0;
}

static int writer_flush(struct perfdata_writer *w)
{
	int r = writer_out(w, w->buf, w->len);

	w->len = 0;
	return r;
}

static uint64_t writer_pos(const struct perfdata_writer *w)
{
	return w->written + w->len;
}

int perfdata_write_bytes(struct perfdata_writer *w, const void *bytes, size_t n)
{
	if (unlikely(n > WRITER_BUFFER - w->len)) {
		int r = writer_flush(w);

		if (r)
			return r;
		if (n > WRITER_BUFFER)
			return writer_out(w, bytes, n);
	}
	memcpy(w->buf + w->len, bytes, n);
	w->len += n;
	return 0;
}

/* Bytes [from, to) of the input. */
static int writer_copy(struct perfdata_writer *w, uint64_t from, uint64_t to)
{
	int r = 0;

	while (!r && from < to) {
		size_t n = (size_t)MIN(WRITER_BUFFER - w->len, to - from);

		if (!n) {
			r = writer_flush(w);
			continue;
		}
		r = perfdata_pread(w->p, w->buf + w->len, n, from);
		if (!r) {
			w->len += n;
			from += n;
		}
	}
	return r;
}

/* -- Beginning ------------------------------------------------------------------------ */

int perfdata_writer_new(struct perfdata_writer **outp, struct perfdata *p, int fd)
{
	_cleanup_(perfdata_writer_freep) struct perfdata_writer *w = calloc(1, sizeof(*w));
	int r;

	*outp = NULL;
	if (!w)
		return -ENOMEM;
	w->buf = malloc(WRITER_BUFFER);
	if (!w->buf)
		return -ENOMEM;
	w->p = p;
	w->fd = fd;
	r = writer_copy(w, 0, p->data.offset);
	if (r)
		return r;
	*outp = TAKE_PTR(w);
	return 0;
}

void perfdata_writer_free(struct perfdata_writer *w)
{
	if (!w)
		return;
	free(w->moves);
	free(w->buf);
	free(w);
}

/* -- Records -------------------------------------------------------------------------- */

/* Records that have moved equally far need one entry. */
static int writer_moved(struct perfdata_writer *w, uint64_t from)
{
	const struct move *last = w->n_moves ? &w->moves[w->n_moves - 1] : NULL;
	uint64_t to = writer_pos(w);

	if (to - from == (last ? last->to - last->from : 0))
		return 0;
	if (w->n_moves == CAP_PERF_AUX_MOVES)
		return perfdata_fail(w->p, PERFDATA_E_CORRUPT, "more than %u AUX records",
				     CAP_PERF_AUX_MOVES);
	if (w->n_moves == w->moves_room) {
		size_t room = w->moves_room ? 2 * w->moves_room : 64;
		struct move *moves = realloc(w->moves, room * sizeof(*moves));

		if (!moves)
			return -ENOMEM;
		w->moves = moves;
		w->moves_room = room;
	}
	w->moves[w->n_moves++] = (struct move){ .from = from, .to = to };
	return 0;
}

static int writer_payload(struct perfdata_writer *w, const struct perfdata_record *rec)
{
	uint64_t from = rec->offset + rec->size;
	int r = 0;

	if (rec->type == PERFDATA_AUXTRACE && w->p->form == FORM_FILE)
		r = writer_moved(w, rec->offset);
	if (!r)
		r = perfdata_write_bytes(w, rec->bytes, rec->size);
	return r ? r : writer_copy(w, from, from + rec->payload);
}

int perfdata_write_record(struct perfdata_writer *w, const struct perfdata_record *rec)
{
	if (unlikely(rec->type == PERFDATA_AUXTRACE || rec->payload))
		return writer_payload(w, rec);
	return perfdata_write_bytes(w, rec->bytes, rec->size);
}

/* -- The end -------------------------------------------------------------------------- */

/* Where a byte of head or tail is in the output. */
static uint64_t writer_place(const struct perfdata_writer *w, uint64_t at)
{
	uint64_t to = at;
	unsigned int i;

	if (at < w->tail_from)
		return at;
	to = at - w->tail_from + w->tail_to;
	for (i = 0; i < w->n_cuts; i++)
		if (at >= w->cuts[i].offset + w->cuts[i].size)
			to -= w->cuts[i].size;
	return to;
}

static int writer_patch(struct perfdata_writer *w, uint64_t at, const void *bytes, size_t n)
{
	const uint8_t *p = bytes;
	uint64_t to = writer_place(w, at);

	while (n) {
		ssize_t r = pwrite(w->fd, p, n, (off_t)to);

		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0)
			return -errno;
		p += r;
		to += (uint64_t)r;
		n -= (size_t)r;
	}
	return 0;
}

static int writer_patch_u64(struct perfdata_writer *w, uint64_t at, uint64_t v)
{
	uint8_t bytes[8];

	put_le64(bytes, v);
	return writer_patch(w, at, bytes, sizeof(bytes));
}

/* The offset v, which stands at `at`. */
static int writer_patch_offset(struct perfdata_writer *w, uint64_t at, uint64_t v)
{
	return v < w->tail_from ? 0 : writer_patch_u64(w, at, writer_place(w, v));
}

static void writer_plan_cuts(struct perfdata_writer *w)
{
	const struct perfdata *p = w->p;
	unsigned int place = perfdata_feature_place(p, PERFDATA_FEAT_COMPRESSED);

	if (p->unfinished || !perfdata_has_feature(p, PERFDATA_FEAT_COMPRESSED))
		return;
	w->cuts[w->n_cuts++] =
		(struct section){ p->table.offset + SECTION_SIZE * place, SECTION_SIZE };
	if (p->compressed.size)
		w->cuts[w->n_cuts++] = p->compressed;
}

static int writer_tail(struct perfdata_writer *w)
{
	uint64_t from = w->tail_from;
	unsigned int i;
	int r = 0;

	for (i = 0; !r && i < w->n_cuts; i++) {
		r = writer_copy(w, from, w->cuts[i].offset);
		from = w->cuts[i].offset + w->cuts[i].size;
	}
	if (!r)
		r = writer_copy(w, from, w->p->size);
	return r ? r : writer_flush(w);
}

static int writer_patch_header(struct perfdata_writer *w)
{
	const struct perfdata *p = w->p;
	uint64_t features[ARRAY_SIZE(p->features)];
	uint8_t event_types[8];
	unsigned int i;
	int r;

	r = writer_patch_u64(w, HEADER_DATA + 8, w->tail_to - p->data.offset);
	if (!r)
		r = writer_patch_offset(w, HEADER_ATTRS, p->attrs_section.offset);
	if (!r)
		r = perfdata_pread(p, event_types, sizeof(event_types), HEADER_EVENT_TYPES);
	if (!r)
		r = writer_patch_offset(w, HEADER_EVENT_TYPES, get_le64(event_types));
	if (p->header_size < HEADER_SIZE)
		return r;
	memcpy(features, p->features, sizeof(features));
	features[PERFDATA_FEAT_COMPRESSED / 64] &= ~(UINT64_C(1) << PERFDATA_FEAT_COMPRESSED % 64);
	for (i = 0; !r && i < ARRAY_SIZE(features); i++)
		r = writer_patch_u64(w, HEADER_FEATURES + 8 * i, p->unfinished ? 0 : features[i]);
	return r;
}

/* Where the ids of each attr are. */
static int writer_patch_attrs(struct perfdata_writer *w)
{
	const struct perfdata *p = w->p;
	uint64_t at = p->attrs_section.offset, end = at + p->attrs_section.size;
	uint8_t bytes[8];
	int r = 0;

	for (; !r && at < end; at += p->attr_entry) {
		uint64_t field;

		r = perfdata_pread(p, bytes, sizeof(bytes), at);
		if (r)
			return r;
		field = at + attr_size(bytes);
		r = perfdata_pread(p, bytes, sizeof(bytes), field);
		if (!r)
			r = writer_patch_offset(w, field, get_le64(bytes));
	}
	return r;
}

static int writer_patch_table(struct perfdata_writer *w)
{
	const struct perfdata *p = w->p;
	unsigned int i, n = perfdata_n_features(p);
	unsigned int cut = perfdata_has_feature(p, PERFDATA_FEAT_COMPRESSED)
				   ? perfdata_feature_place(p, PERFDATA_FEAT_COMPRESSED)
				   : n;
	int r = 0;

	for (i = 0; !r && i < n; i++)
		if (i != cut)
			r = writer_patch_offset(w, p->table.offset + SECTION_SIZE * i,
						p->sections[i].offset);
	return r;
}

/* Where the AUXTRACE record at `from` has gone. */
static uint64_t writer_moved_to(const struct perfdata_writer *w, uint64_t from)
{
	size_t low = 0, high = w->n_moves;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (w->moves[mid].from <= from)
			low = mid + 1;
		else
			high = mid;
	}
	return low ? from - w->moves[low - 1].from + w->moves[low - 1].to : from;
}

/* u64 count, then {u64 offset of an AUXTRACE record, u64 its size} each */
static int writer_patch_index(struct perfdata_writer *w)
{
	const struct perfdata *p = w->p;
	const struct section *s = &p->sections[perfdata_feature_place(p, PERFDATA_FEAT_AUXTRACE)];
	uint8_t bytes[INDEX_CHUNK];
	uint64_t at = s->offset + 8, left;
	int r;

	if (s->size < 8 || !w->n_moves)
		return 0;
	r = perfdata_pread(p, bytes, 8, s->offset);
	left = MIN(get_le64(bytes), (s->size - 8) / INDEX_ENTRY) * INDEX_ENTRY;
	while (!r && left) {
		size_t i, n = (size_t)MIN(left, sizeof(bytes));

		r = perfdata_pread(p, bytes, n, at);
		for (i = 0; !r && i < n; i += INDEX_ENTRY)
			put_le64(bytes + i, writer_moved_to(w, get_le64(bytes + i)));
		if (!r)
			r = writer_patch(w, at, bytes, n);
		at += n;
		left -= n;
	}
	return r;
}

static int writer_patch_all(struct perfdata_writer *w)
{
	int r;

	r = writer_patch_header(w);
	if (!r)
		r = writer_patch_attrs(w);
	if (r || w->p->unfinished)
		return r;
	r = writer_patch_table(w);
	if (!r && perfdata_has_feature(w->p, PERFDATA_FEAT_AUXTRACE))
		r = writer_patch_index(w);
	return r;
}

int perfdata_writer_finish(struct perfdata_writer *w)
{
	struct perfdata *p = w->p;
	int r;

	if (p->form != FORM_FILE)
		return writer_flush(w);
	w->tail_from = p->data.offset + p->data.size;
	w->tail_to = writer_pos(w);
	if (w->tail_to == p->data.offset && w->tail_from < p->size)
		/* a size of 0 means "to the end of the file" */
		return perfdata_fail(p, PERFDATA_E_CORRUPT, "there is not a single record");
	writer_plan_cuts(w);
	r = writer_tail(w);
	if (r)
		return r;
	if (w->tail_from == w->tail_to && !w->n_cuts && !w->n_moves && !p->unfinished)
		return 0;
	return writer_patch_all(w);
}
