/* SPDX-License-Identifier: Apache-2.0 */
/*
 * perfdata: the walk over the records.
 *
 * The file is read in large pieces into one window, and records are handed out in place; one that
 * straddles the window's end is moved to its front first. Payload that follows a record is stepped
 * over without being read. So memory is the same for any file, and a record costs no copy. Window
 * and decoder exist only while a walk is under way: a directory may have very many parts, and each
 * decoder may take 128 MB.
 *
 * Everything that a size can lead to is checked against the end of the records before it is used,
 * and the walk ends at the first impossible one: sizes alone lead from record to record. A failure
 * stays until perfdata_rewind().
 *
 * In a pipe attrs and some features come as records. They are looked into the first time
 * they pass, and kept.
 */
#include "perfdata/perfdata.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>

#include "base/caps.h"
#include "perfdata/state.h"

/* -- Failures ------------------------------------------------------------------------- */

static const char *const error_kinds[] = {
	[PERFDATA_E_NOT_PERF] = "not a perf.data file",
	[PERFDATA_E_VERSION] = "unknown version",
	[PERFDATA_E_TRUNCATED] = "truncated",
	[PERFDATA_E_CORRUPT] = "corrupt",
	[PERFDATA_E_COMPRESSED] = "cannot be decompressed",
	[PERFDATA_E_END] = "no more records",
};

int perfdata_fail(const struct perfdata *p, int code, const char *fmt, ...)
{
	struct failure *f = p->failure;
	int n = snprintf(f->text, sizeof(f->text), "%s: ", error_kinds[code]);
	va_list ap;

	f->code = code;
	va_start(ap, fmt);
	vsnprintf(f->text + n, sizeof(f->text) - (size_t)n, fmt, ap);
	va_end(ap);
	return code;
}

const char *perfdata_error_text(const struct perfdata *p, int error)
{
	if (error < 0)
		return strerror(-error);
	if (error == p->failure->code)
		return p->failure->text;
	return error > 0 && (size_t)error < ARRAY_SIZE(error_kinds) ? error_kinds[error] : "";
}

/* -- Opening -------------------------------------------------------------------------- */

int perfdata_pread(const struct perfdata *p, void *out, size_t n, uint64_t offset)
{
	size_t done = 0;

	while (done < n) {
		ssize_t r = pread(p->fd, (uint8_t *)out + done, n - done, (off_t)(offset + done));

		if (r < 0 && errno == EINTR)
			continue;
		if (r < 0)
			return -errno;
		if (!r)
			return perfdata_fail(p, PERFDATA_E_TRUNCATED,
					     "no bytes any more at offset %" PRIu64, offset + done);
		done += (size_t)r;
	}
	return 0;
}

static int perfdata_start(struct perfdata *p)
{
	struct stat st;
	int r;

	if (fstat(p->fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return perfdata_fail(p, PERFDATA_E_NOT_PERF, "no regular file");
	p->size = (uint64_t)st.st_size;
	if (p->form == FORM_PART) {
		p->data.size = p->size;
	} else {
		r = perfdata_read_header(p);
		if (r)
			return r;
	}
	p->end = p->data.offset + p->data.size;
	return perfdata_rewind(p);
}

int perfdata_open(struct perfdata **outp, int fd, const struct perfdata *part_of)
{
	_cleanup_(perfdata_freep) struct perfdata *p = calloc(1, sizeof(*p));
	int r;

	*outp = NULL;
	if (!p)
		return -ENOMEM;
	p->failure = calloc(1, sizeof(*p->failure));
	if (!p->failure)
		return -ENOMEM;
	p->fd = fd;
	p->main = part_of ? part_of->main : p;
	p->form = part_of ? FORM_PART : FORM_FILE;
	r = perfdata_start(p);
	if (r < 0)
		return r;
	*outp = TAKE_PTR(p);
	return r;
}

/* What only a walk needs. */
static void reader_release(struct perfdata *p)
{
	decoder_deinit(&p->decoder);
	free(p->window.data);
	p->window = (struct window){ 0 };
}

void perfdata_free(struct perfdata *p)
{
	if (!p)
		return;
	reader_release(p);
	attrs_deinit(&p->attrs);
	free(p->hostname);
	free(p->failure);
	free(p);
}

bool perfdata_is_pipe(const struct perfdata *p)
{
	return p->form == FORM_PIPE;
}

uint64_t perfdata_size(const struct perfdata *p)
{
	return p->size;
}

const char *perfdata_hostname(const struct perfdata *p)
{
	return p->main->hostname;
}

bool perfdata_has_hidden_addresses(const struct perfdata *p)
{
	const struct attrs *a = &p->main->attrs;
	uint32_t i;

	for (i = 0; i < a->n; i++)
		if (a->layouts[i].hidden)
			return true;
	return false;
}

void perfdata_get_clock(const struct perfdata *p, struct perfdata_clock *clock)
{
	const struct attrs *a = &p->main->attrs;
	const struct layout *first = NULL;
	uint32_t i;

	*clock = (struct perfdata_clock){
		.has_pair = p->main->has_pair,
		.wall_ns = p->main->wall_ns,
		.clock_ns = p->main->clock_ns,
	};
	for (i = 0; i < a->n; i++) {
		const struct layout *l = &a->layouts[i];

		if (!l->sampling)
			continue;
		if (!first) {
			first = l;
			clock->has_time = true;
			clock->use_clockid = l->use_clockid;
			clock->clockid = l->clockid;
		}
		if (!l->time)
			clock->has_time = false;
		if (l->use_clockid != first->use_clockid || l->clockid != first->clockid)
			clock->use_clockid = false;
	}
}

/* -- Records -------------------------------------------------------------------------- */

int perfdata_rewind(struct perfdata *p)
{
	p->pos = p->data.offset;
	p->error = 0;
	p->special = false;
	reader_release(p);
	return 0;
}

/* Bytes of the window from the next record on. */
static inline size_t window_left(const struct perfdata *p)
{
	uint64_t at = p->pos - p->window.offset;

	return at < p->window.len ? p->window.len - (size_t)at : 0;
}

static inline const uint8_t *window_bytes(const struct perfdata *p)
{
	return p->window.data + (p->pos - p->window.offset);
}

/* Makes the window begin at the next record, and as long as it can be. */
static int window_fill(struct perfdata *p)
{
	struct window *w = &p->window;
	size_t left = window_left(p), want = (size_t)MIN(PERF_WINDOW, p->end - p->pos);
	int r;

	if (!w->data) {
		w->data = malloc(PERF_WINDOW);
		if (!w->data)
			return -ENOMEM;
	}
	if (left)
		memmove(w->data, window_bytes(p), left);
	w->offset = p->pos;
	w->len = left;
	r = perfdata_pread(p, w->data + left, want - left, p->pos + left);
	if (r)
		return r;
	w->len = want;
	return 0;
}

/* AUXTRACE, TRACING_DATA: bytes behind the record, which its size does not count. */
static int reader_payload(struct perfdata *p, struct perfdata_record *rec)
{
	bool aux = rec->type == PERFDATA_AUXTRACE;
	uint64_t left = p->end - p->pos - rec->size;

	if (rec->size < (aux ? 16 : 12))
		return perfdata_fail(p, PERFDATA_E_CORRUPT,
				     "record of type %" PRIu32 " and %u bytes at offset %" PRIu64,
				     rec->type, rec->size, p->pos);
	if (aux)
		rec->payload = get_le64(rec->bytes + 8);
	else
		rec->payload = ((uint64_t)get_le32(rec->bytes + 8) + 7) & ~UINT64_C(7);
	if (rec->payload > left)
		return perfdata_fail(p, PERFDATA_E_TRUNCATED,
				     "data of %" PRIu64 " bytes after the record at offset %" PRIu64
				     " need %" PRIu64 " more",
				     rec->payload, p->pos, rec->payload - left);
	return 0;
}

static int reader_compressed(struct perfdata *p, const struct perfdata_record *rec)
{
	const uint8_t *bytes = rec->bytes + RECORD_HEADER;
	uint64_t n = rec->size - RECORD_HEADER;

	if (p->main->foreign_compression)
		return perfdata_fail(p, PERFDATA_E_COMPRESSED,
				     "compressed by something else than zstd");
	if (rec->type == PERFDATA_COMPRESSED2) {
		if (n < 8 || get_le64(bytes) > n - 8)
			return perfdata_fail(p, PERFDATA_E_CORRUPT,
					     "compressed record of %u bytes at offset %" PRIu64,
					     rec->size, rec->offset);
		n = get_le64(bytes);
		bytes += 8;
	}
	p->special = true;
	return decoder_feed(&p->decoder, bytes, (size_t)n, rec->offset);
}

/* What the walk itself must know of records that perf made, not the kernel. */
static int reader_user_record(struct perfdata *p, struct perfdata_record *rec)
{
	int r;

	switch (rec->type) {
	case PERFDATA_TRACING_DATA:
	case PERFDATA_AUXTRACE: return reader_payload(p, rec);
	case PERFDATA_COMPRESSED:
	case PERFDATA_COMPRESSED2: return reader_compressed(p, rec);
	}
	if (p->form != FORM_PIPE || rec->offset < p->learnt)
		return 0;
	r = perfdata_learn(p, rec);
	if (!r)
		p->learnt = rec->offset + rec->size;
	return r;
}

static int reader_short(const struct perfdata *p, uint64_t size, uint64_t left)
{
	if (left < RECORD_HEADER)
		return perfdata_fail(p, PERFDATA_E_TRUNCATED,
				     "%" PRIu64 " bytes at offset %" PRIu64
				     " where a record must be",
				     left, p->pos);
	return perfdata_fail(p, PERFDATA_E_TRUNCATED,
			     "record of %" PRIu64 " bytes at offset %" PRIu64 " needs %" PRIu64
			     " more",
			     size, p->pos, size - left);
}

static inline void reader_take(struct perfdata *p, struct perfdata_record *rec)
{
	const uint8_t *bytes = window_bytes(p);

	rec->type = get_le32(bytes);
	rec->misc = get_le16(bytes + 4);
	rec->size = get_le16(bytes + 6);
	rec->bytes = bytes;
	rec->payload = 0;
	rec->offset = p->pos;
}

/* The next record as it is in the file. */
static int reader_next(struct perfdata *p, struct perfdata_record *rec)
{
	uint64_t left = p->end - p->pos;
	uint16_t size;
	int r;

	if (unlikely(window_left(p) < RECORD_HEADER)) {
		if (!left)
			return PERFDATA_E_END;
		if (left < RECORD_HEADER)
			return reader_short(p, 0, left);
		r = window_fill(p);
		if (r)
			return r;
	}
	size = get_le16(window_bytes(p) + 6);
	if (unlikely(size < RECORD_HEADER))
		return perfdata_fail(p, PERFDATA_E_CORRUPT, "record of %u bytes at offset %" PRIu64,
				     size, p->pos);
	if (unlikely(window_left(p) < size)) {
		if (left < size)
			return reader_short(p, size, left);
		r = window_fill(p);
		if (r)
			return r;
	}
	reader_take(p, rec);
	if (unlikely(rec->type > MAX_KERNEL_TYPE)) {
		r = reader_user_record(p, rec);
		if (r)
			return r;
	}
	p->pos += size + rec->payload;
	return 0;
}

static int reader_refused(const struct perfdata *p, const struct perfdata_record *rec, int why)
{
	uint64_t at = p->decoder.offset;

	switch (why) {
	case DECODER_E_SIZE:
		return perfdata_fail(p, PERFDATA_E_CORRUPT,
				     "impossible size in the compressed record at offset %" PRIu64,
				     at);
	case DECODER_E_TYPE:
		return perfdata_fail(p, PERFDATA_E_CORRUPT,
				     "record of type %" PRIu32
				     " in the compressed record at offset %" PRIu64,
				     rec->type, at);
	}
	return perfdata_fail(p, PERFDATA_E_COMPRESSED, "zstd refuses the record at offset %" PRIu64,
			     at);
}

/*
 * What came compressed goes first, until the next COMPRESSED record is needed. Plain records
 * that lie between two parts of one record are passed on before it.
 */
static NOINLINE int reader_next_any(struct perfdata *p, struct perfdata_record *rec)
{
	int r;

	do {
		if (unlikely(p->special)) {
			if (p->error)
				return p->error;
			r = decoder_next(&p->decoder, rec);
			if (!r)
				return 0;
			if (r != DECODER_DRY) {
				r = r < 0 ? r : reader_refused(p, rec, r);
				break;
			}
			p->special = false;
		}
		r = reader_next(p, rec);
	} while (!r && unlikely(p->special));
	if (likely(!r))
		return 0;
	if (r == PERFDATA_E_END && decoder_left(&p->decoder))
		r = perfdata_fail(p, PERFDATA_E_TRUNCATED,
				  "the compressed record at offset %" PRIu64
				  " ends inside another, and none follows",
				  p->decoder.offset);
	reader_release(p);
	p->error = r;
	p->special = true;
	return r;
}

/* Nearly always a record of the kernel that is in the window: no more than that is done here. */
int perfdata_next(struct perfdata *p, struct perfdata_record *rec)
{
	size_t left = window_left(p);

	if (unlikely(p->special || left < RECORD_HEADER))
		return reader_next_any(p, rec);
	reader_take(p, rec);
	if (unlikely(rec->type > MAX_KERNEL_TYPE || rec->size < RECORD_HEADER || rec->size > left))
		return reader_next_any(p, rec);
	p->pos += rec->size;
	return 0;
}
