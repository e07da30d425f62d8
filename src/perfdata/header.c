/* SPDX-License-Identifier: Apache-2.0 */
/*
 * perfdata: what a file says of itself.
 *
 *	file   header (104 bytes) · ids · attrs · records · table of features · features
 *	pipe   header (16 bytes) · records
 *
 * The header holds the place and size of attrs and records; an attr entry ends with those of its
 * ids. The table begins where the records end, one {offset, size} for each bit of the bitmap
 * that is set. Newer perf may write the attrs behind the features. All offsets are absolute.
 *
 * The writer has to move everything that lies behind the records and to patch the offsets in
 * it. It can do so without looking at the contents because of what is checked here: header, attrs,
 * records and table do not overlap, no other section reaches into one of them, and none ends
 * behind the end of the file.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/caps.h"
#include "base/reader.h"
#include "perfdata/state.h"

/* Read at once, of ids. */
#define CHUNK            8192u

#define ZSTD_COMPRESSION 1u

/* -- Sections ------------------------------------------------------------------------- */

static struct section section_parse(const uint8_t *bytes)
{
	return (struct section){ .offset = get_le64(bytes), .size = get_le64(bytes + 8) };
}

static bool section_overlaps(const struct section *a, const struct section *b)
{
	return a->size && b->size && a->offset < b->offset + b->size &&
	       b->offset < a->offset + a->size;
}

static int section_check(const struct perfdata *p, const struct section *s, const char *what)
{
	uint64_t end;

	if (!s->size)
		return 0;
	if (__builtin_add_overflow(s->offset, s->size, &end))
		return perfdata_fail(p, PERFDATA_E_CORRUPT,
				     "%s of %" PRIu64 " bytes at offset %" PRIu64, what, s->size,
				     s->offset);
	if (end > p->size)
		return perfdata_fail(p, PERFDATA_E_TRUNCATED,
				     "%s of %" PRIu64 " bytes at offset %" PRIu64 " need %" PRIu64
				     " more",
				     what, s->size, s->offset, end - p->size);
	return 0;
}

/* The parts that others must leave alone, and one another, too. */
static int section_check_apart(const struct perfdata *p, const struct section *s, const char *what)
{
	const struct section header = { .size = p->header_size };
	const struct section *fixed[] = { &header, &p->attrs_section, &p->data, &p->table };
	size_t i;

	for (i = 0; i < ARRAY_SIZE(fixed); i++)
		if (s != fixed[i] && section_overlaps(s, fixed[i]))
			return perfdata_fail(p, PERFDATA_E_CORRUPT,
					     "%s at offset %" PRIu64
					     " in the midst of other things",
					     what, s->offset);
	return 0;
}

/* A section that no part of the frame is: ids, a feature. */
static int section_check_content(struct perfdata *p, const struct section *s, const char *what)
{
	int r = section_check(p, s, what);

	if (!r)
		r = section_check_apart(p, s, what);
	return r;
}

/* -- Features ------------------------------------------------------------------------- */

bool perfdata_has_feature(const struct perfdata *p, unsigned int feature)
{
	return p->features[feature / 64] >> feature % 64 & 1;
}

unsigned int perfdata_feature_place(const struct perfdata *p, unsigned int feature)
{
	unsigned int i, n = 0;

	for (i = 0; i < feature / 64; i++)
		n += (unsigned int)__builtin_popcountll(p->features[i]);
	if (feature % 64)
		n += (unsigned int)__builtin_popcountll(p->features[i] << (64 - feature % 64));
	return n;
}

unsigned int perfdata_n_features(const struct perfdata *p)
{
	return perfdata_feature_place(p, MAX_FEATURES - 1) +
	       perfdata_has_feature(p, MAX_FEATURES - 1);
}

/* u32 length, which counts a NUL and padding; text */
static int learn_hostname(struct perfdata *p, struct reader *r)
{
	uint32_t n = reader_u32(r);
	const uint8_t *text = reader_bytes(r, n);

	if (!text || !n || n > CAP_PERF_HOSTNAME || p->hostname)
		return 0;
	p->hostname = malloc(n + 1);
	if (!p->hostname)
		return -ENOMEM;
	memcpy(p->hostname, text, n);
	p->hostname[n] = '\0';
	return 0;
}

static void learn_clock_data(struct perfdata *p, struct reader *r)
{
	uint64_t wall_ns, clock_ns;

	reader_skip(r, 8); /* u32 version, u32 clockid */
	wall_ns = reader_u64(r);
	clock_ns = reader_u64(r);
	if (r->bad)
		return;
	p->has_pair = true;
	p->wall_ns = wall_ns;
	p->clock_ns = clock_ns;
}

static void learn_compressed(struct perfdata *p, struct reader *r)
{
	reader_skip(r, 4); /* u32 version */
	p->foreign_compression = reader_u32(r) != ZSTD_COMPRESSION && !r->bad;
}

/* One that is too short is passed over: it only says less. */
static int learn_feature(struct perfdata *p, uint64_t feature, struct reader *r)
{
	switch (feature) {
	case PERFDATA_FEAT_HOSTNAME: return learn_hostname(p, r);
	case PERFDATA_FEAT_CLOCK_DATA: learn_clock_data(p, r); return 0;
	case PERFDATA_FEAT_COMPRESSED: learn_compressed(p, r); return 0;
	default: return 0;
	}
}

static int read_feature(struct perfdata *p, unsigned int feature, const struct section *s)
{
	uint8_t bytes[CAP_PERF_HOSTNAME + 4];
	size_t n = (size_t)MIN(s->size, sizeof(bytes));
	struct reader reader;
	int r;

	r = perfdata_pread(p, bytes, n, s->offset);
	if (r)
		return r;
	reader_init(&reader, bytes, n);
	return learn_feature(p, feature, &reader);
}

static int read_features(struct perfdata *p)
{
	uint8_t table[MAX_FEATURES * SECTION_SIZE];
	unsigned int feature, place = 0;
	int r;

	r = perfdata_pread(p, table, (size_t)p->table.size, p->table.offset);
	for (feature = 0; !r && feature < MAX_FEATURES; feature++) {
		struct section *s = &p->sections[place];

		if (!perfdata_has_feature(p, feature))
			continue;
		*s = section_parse(table + SECTION_SIZE * place++);
		r = section_check_content(p, s, "feature");
		if (r)
			return r;
		if (feature == PERFDATA_FEAT_COMPRESSED)
			p->compressed = *s;
		switch (feature) {
		case PERFDATA_FEAT_HOSTNAME:
		case PERFDATA_FEAT_CLOCK_DATA:
		case PERFDATA_FEAT_COMPRESSED: r = read_feature(p, feature, s);
		}
	}
	return r;
}

/* The section that the writer cuts out must not hold anything else. */
static void check_compressed(struct perfdata *p)
{
	unsigned int i, n = perfdata_n_features(p);
	unsigned int own = perfdata_feature_place(p, PERFDATA_FEAT_COMPRESSED);

	if (p->compressed.offset < p->table.offset)
		p->compressed.size = 0;
	for (i = 0; i < n; i++)
		if (i != own && section_overlaps(&p->sections[i], &p->compressed))
			p->compressed.size = 0;
}

/* -- Attrs ---------------------------------------------------------------------------- */

static int learn_attr(struct perfdata *p, const uint8_t *attr, uint32_t size)
{
	int r = attrs_add(&p->attrs, attr, size);

	return r <= 0 ? r : perfdata_fail(p, r, "more than %u events", CAP_PERF_ATTRS);
}

static int learn_ids(struct perfdata *p, const uint8_t *ids, size_t n_bytes)
{
	size_t i;
	int r = 0;

	for (i = 0; !r && i + 8 <= n_bytes; i += 8)
		r = attrs_add_id(&p->attrs, get_le64(ids + i));
	return r <= 0 ? r : perfdata_fail(p, r, "more than %u ids of events", CAP_PERF_IDS);
}

static int read_ids(struct perfdata *p, const struct section *ids)
{
	uint8_t bytes[CHUNK];
	uint64_t done, n;
	int r;

	r = section_check_content(p, ids, "ids");
	if (r)
		return r;
	if (section_overlaps(ids, &p->compressed))
		p->compressed.size = 0;
	for (done = 0; !r && done < ids->size; done += n) {
		n = MIN(ids->size - done, sizeof(bytes));
		r = perfdata_pread(p, bytes, (size_t)n, ids->offset + done);
		if (!r)
			r = learn_ids(p, bytes, (size_t)n);
	}
	return r;
}

static int read_attrs(struct perfdata *p)
{
	uint8_t entry[CAP_PERF_ATTR_BYTES + SECTION_SIZE];
	uint64_t end = p->attrs_section.offset + p->attrs_section.size, at;
	struct section ids;
	uint32_t size;
	int r = 0;

	for (at = p->attrs_section.offset; !r && at < end; at += p->attr_entry) {
		r = perfdata_pread(p, entry, (size_t)p->attr_entry, at);
		if (r)
			return r;
		size = attr_size(entry);
		if (!size || size > p->attr_entry - SECTION_SIZE)
			return perfdata_fail(p, PERFDATA_E_CORRUPT,
					     "attr of %" PRIu32 " bytes at offset %" PRIu64,
					     get_le32(entry + ATTR_OFF_SIZE), at);
		r = learn_attr(p, entry, size);
		if (r)
			return r;
		ids = section_parse(entry + size);
		r = read_ids(p, &ids);
	}
	return r;
}

int perfdata_learn(struct perfdata *p, const struct perfdata_record *rec)
{
	const uint8_t *body = rec->bytes + RECORD_HEADER;
	size_t n = rec->size - RECORD_HEADER;
	struct reader reader;
	uint64_t feature;
	uint32_t size;
	int r;

	switch (rec->type) {
	case PERFDATA_ATTR:
		size = n < ATTR_SIZE_MIN ? 0 : attr_size(body);
		if (!size || size > n)
			return perfdata_fail(p, PERFDATA_E_CORRUPT,
					     "attr record of %u bytes at offset %" PRIu64,
					     rec->size, rec->offset);
		r = learn_attr(p, body, size);
		return r ? r : learn_ids(p, body + size, n - size);
	case PERFDATA_FEATURE:
		reader_init(&reader, body, n);
		feature = reader_u64(&reader);
		return learn_feature(p, feature, &reader);
	}
	return 0;
}

/* -- Header --------------------------------------------------------------------------- */

static int read_magic(struct perfdata *p, uint8_t head[HEADER_SIZE_PIPE])
{
	size_t n = (size_t)MIN(p->size, HEADER_SIZE_PIPE);
	int r;

	r = perfdata_pread(p, head, n, 0);
	if (r)
		return r;
	if (n >= 8 && !memcmp(head, "PERFFILE", 8))
		return perfdata_fail(p, PERFDATA_E_VERSION, "PERFFILE, the form of before 2010");
	if (n >= 8 && !memcmp(head, "2ELIFREP", 8))
		return perfdata_fail(p, PERFDATA_E_VERSION, "recorded on a big-endian machine");
	if (!n || memcmp(head, "PERFILE2", MIN(n, (size_t)8)))
		return perfdata_fail(p, PERFDATA_E_NOT_PERF, "%s",
				     n ? "it does not begin with PERFILE2" : "it is empty");
	if (n < HEADER_SIZE_PIPE)
		return perfdata_fail(p, PERFDATA_E_TRUNCATED, "header of %zu bytes", n);
	return 0;
}

static void parse_header(struct perfdata *p, const uint8_t *head)
{
	unsigned int i;

	p->attr_entry = get_le64(head + 16);
	p->attrs_section = section_parse(head + HEADER_ATTRS);
	p->data = section_parse(head + HEADER_DATA);
	for (i = 0; p->header_size == HEADER_SIZE && i < ARRAY_SIZE(p->features); i++)
		p->features[i] = get_le64(head + HEADER_FEATURES + 8 * i);
	/* perf fills in the size at its end, and writes the features after that */
	if (!p->data.size && p->data.offset < p->size) {
		p->unfinished = true;
		p->data.size = p->size - p->data.offset;
	} else {
		p->table.offset = p->data.offset + p->data.size;
		p->table.size = SECTION_SIZE * (uint64_t)perfdata_n_features(p);
	}
}

static int check_header(const struct perfdata *p)
{
	const struct section *parts[] = { &p->data, &p->attrs_section, &p->table };
	static const char *const names[] = { "records", "attrs", "table of features" };
	size_t i;
	int r = 0;

	if (p->attr_entry < ATTR_SIZE_MIN + SECTION_SIZE ||
	    p->attr_entry > CAP_PERF_ATTR_BYTES + SECTION_SIZE ||
	    p->attrs_section.size % p->attr_entry)
		return perfdata_fail(p, PERFDATA_E_CORRUPT,
				     "%" PRIu64 " bytes of attrs, each of %" PRIu64,
				     p->attrs_section.size, p->attr_entry);
	if (p->data.offset < p->header_size)
		return perfdata_fail(p, PERFDATA_E_CORRUPT, "records at offset %" PRIu64,
				     p->data.offset);
	if (p->data.offset > p->size)
		return perfdata_fail(p, PERFDATA_E_TRUNCATED,
				     "records at offset %" PRIu64 " of %" PRIu64, p->data.offset,
				     p->size);
	for (i = 0; !r && i < ARRAY_SIZE(parts); i++)
		r = section_check(p, parts[i], names[i]);
	for (i = 0; !r && i < ARRAY_SIZE(parts); i++)
		r = section_check_apart(p, parts[i], names[i]);
	return r;
}

int perfdata_read_header(struct perfdata *p)
{
	uint8_t head[HEADER_SIZE];
	int r;

	r = read_magic(p, head);
	if (r)
		return r;
	p->header_size = get_le64(head + 8);
	if (p->header_size == HEADER_SIZE_PIPE) {
		p->form = FORM_PIPE;
		p->data = (struct section){ HEADER_SIZE_PIPE, p->size - HEADER_SIZE_PIPE };
		return 0;
	}
	if (p->header_size != HEADER_SIZE && p->header_size != HEADER_SIZE_OLD)
		return perfdata_fail(p, PERFDATA_E_VERSION, "header of %" PRIu64 " bytes",
				     p->header_size);
	r = perfdata_pread(p, head, (size_t)p->header_size, 0);
	if (r)
		return r;
	parse_header(p, head);
	r = check_header(p);
	if (!r && !p->unfinished)
		r = read_features(p);
	if (r)
		return r;
	check_compressed(p);
	return read_attrs(p);
}
