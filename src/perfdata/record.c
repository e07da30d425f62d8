/* SPDX-License-Identifier: Apache-2.0 */
/*
 * perfdata: what is in a record, and MMAP2 records of our own.
 *
 *	MMAP    8 pid · 12 tid · 16 addr · 24 length · 32 page offset · 40 name
 *	MMAP2   the same to 40 · 24 bytes of inode or build-id · 64 protection · 68 flags · 72 name
 *	COMM    8 pid · 12 tid · 16 name
 *	FORK, EXIT  8 pid · 12 parent · 16 tid · 20 its parent · 24 time
 *
 * Names are padded with zeros to a multiple of 8; behind them, at the very end, is the trailer
 * (see attrs.c). What is read here is checked first; what is not read (the rest of a sample)
 * stays unchecked, as nothing depends on it.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

#include "perfdata/state.h"

#define MMAP_NAME     40u
#define MMAP2_INODE   40u
#define MMAP2_BUILDID 44u /* after its length and three zeros */
#define MMAP2_PROT    64u
#define MMAP2_FLAGS   68u
#define MMAP2_NAME    72u
#define COMM_NAME     16u
#define TASK_SIZE     32u

#define CPUMODE_USER  2u

static int record_unknown(const struct perfdata *p, const struct perfdata_record *rec)
{
	return perfdata_fail(p, PERFDATA_E_CORRUPT,
			     "record of type %" PRIu32 " at offset %" PRIu64
			     " belongs to no known event",
			     rec->type, rec->offset);
}

static int record_short(const struct perfdata *p, const struct perfdata_record *rec)
{
	return perfdata_fail(p, PERFDATA_E_CORRUPT,
			     "record of type %" PRIu32 " at offset %" PRIu64
			     " with %u bytes is too short",
			     rec->type, rec->offset, rec->size);
}

/* -- Identity ------------------------------------------------------------------------- */

static inline void sample_id(const struct layout *l, const uint8_t *bytes, struct perfdata_id *id)
{
	id->pid = l->tid ? get_le32(bytes + l->tid) : 0;
	id->tid = l->tid ? get_le32(bytes + l->tid + 4) : 0;
	id->time = l->time ? get_le64(bytes + l->time) : 0;
	id->has_time = l->time != 0;
}

/*
 * The trailer of a kernel record whose own fields take min bytes; *endp is where it begins.
 */
static int record_trailer(const struct perfdata *p, const struct perfdata_record *rec, size_t min,
			  struct perfdata_id *id, size_t *endp)
{
	const struct layout *l = attrs_of_trailer(&p->main->attrs, rec->bytes, rec->size);
	const uint8_t *end = rec->bytes + rec->size;

	if (unlikely(!l))
		return record_unknown(p, rec);
	if (unlikely(rec->size < min + l->trailer))
		return record_short(p, rec);
	id->pid = l->trailer_tid ? get_le32(end - l->trailer_tid) : 0;
	id->tid = l->trailer_tid ? get_le32(end - l->trailer_tid + 4) : 0;
	id->time = l->trailer_time ? get_le64(end - l->trailer_time) : 0;
	id->has_time = l->trailer_time != 0;
	*endp = rec->size - (size_t)l->trailer;
	return 0;
}

int perfdata_parse_id(const struct perfdata *p, const struct perfdata_record *rec,
		      struct perfdata_id *id)
{
	const struct layout *l;
	size_t end;

	if (rec->type > MAX_KERNEL_TYPE) {
		*id = (struct perfdata_id){ 0 };
		return 0;
	}
	if (rec->type != PERFDATA_SAMPLE)
		return record_trailer(p, rec, RECORD_HEADER, id, &end);
	l = attrs_of_sample(&p->main->attrs, rec->bytes, rec->size);
	if (unlikely(!l))
		return record_unknown(p, rec);
	if (unlikely(rec->size < l->fixed))
		return record_short(p, rec);
	sample_id(l, rec->bytes, id);
	return 0;
}

/* -- Samples -------------------------------------------------------------------------- */

/* Where READ, which begins at `at`, ends; SIZE_MAX if not inside the record. */
static size_t sample_read_end(const struct layout *l, const struct perfdata_record *rec, size_t at)
{
	size_t entry = layout_read_entry(l), head = layout_read_head(l), left = rec->size - at;
	uint64_t n;

	if (!(l->read_format & READ_GROUP))
		return head + entry <= left ? at + head + entry : SIZE_MAX;
	if (head > left)
		return SIZE_MAX;
	n = get_le64(rec->bytes + at);
	return n <= (left - head) / entry ? at + head + (size_t)n * entry : SIZE_MAX;
}

static NOINLINE int sample_chain(const struct perfdata *p, const struct layout *l,
				 const struct perfdata_record *rec, struct perfdata_sample *s)
{
	size_t at = l->fixed;

	if (l->sample_type & SAMPLE_READ)
		at = sample_read_end(l, rec, at);
	if (at == SIZE_MAX || rec->size - at < 8)
		return record_short(p, rec);
	s->n_chain = get_le64(rec->bytes + at);
	if (s->n_chain > (rec->size - at - 8) / 8)
		return record_short(p, rec);
	s->chain = rec->bytes + at + 8;
	return 0;
}

static inline int sample_fields(const struct perfdata *p, const struct layout *l,
				const struct perfdata_record *rec, struct perfdata_sample *s)
{
	if (unlikely(rec->size < l->fixed))
		return record_short(p, rec);
	sample_id(l, rec->bytes, &s->id);
	s->has_ip = l->ip != 0;
	s->ip = l->ip ? get_le64(rec->bytes + l->ip) : 0;
	s->user = (rec->misc & PERFDATA_MISC_CPUMODE) == CPUMODE_USER;
	s->chain = NULL;
	s->n_chain = 0;
	return l->sample_type & SAMPLE_CALLCHAIN ? sample_chain(p, l, rec, s) : 0;
}

/* Of several events, or of none. */
static NOINLINE int sample_of_event(const struct perfdata *p, const struct perfdata_record *rec,
				    struct perfdata_sample *s)
{
	const struct layout *l = attrs_of_sample(&p->main->attrs, rec->bytes, rec->size);

	return l ? sample_fields(p, l, rec, s) : record_unknown(p, rec);
}

int perfdata_parse_sample(const struct perfdata *p, const struct perfdata_record *rec,
			  struct perfdata_sample *s)
{
	const struct attrs *attrs = &p->main->attrs;

	if (unlikely(rec->type != PERFDATA_SAMPLE))
		return -EINVAL;
	return likely(attrs->uniform) ? sample_fields(p, attrs->layouts, rec, s)
				      : sample_of_event(p, rec, s);
}

/* -- Mappings and tasks --------------------------------------------------------------- */

int perfdata_parse_mmap(const struct perfdata *p, const struct perfdata_record *rec,
			struct perfdata_mmap *m)
{
	bool is_mmap2 = rec->type == PERFDATA_MMAP2;
	size_t name_at = is_mmap2 ? MMAP2_NAME : MMAP_NAME, end;
	const uint8_t *bytes = rec->bytes;
	int r;

	if (!is_mmap2 && rec->type != PERFDATA_MMAP)
		return -EINVAL;
	r = record_trailer(p, rec, name_at + 1, &m->id, &end);
	if (r)
		return r;
	m->name = (const char *)bytes + name_at;
	m->name_room = (uint32_t)(end - name_at);
	m->name_len = (uint32_t)strnlen(m->name, m->name_room);
	if (m->name_len == m->name_room)
		return record_short(p, rec);
	m->pid = get_le32(bytes + 8);
	m->tid = get_le32(bytes + 12);
	m->addr = get_le64(bytes + 16);
	m->len = get_le64(bytes + 24);
	m->pgoff = get_le64(bytes + 32);
	m->executable = !(rec->misc & PERFDATA_MISC_MMAP_DATA);
	m->has_build_id = is_mmap2 && (rec->misc & PERFDATA_MISC_BUILD_ID);
	m->inode = is_mmap2 ? bytes + MMAP2_INODE : NULL;
	m->prot = is_mmap2 ? get_le32(bytes + MMAP2_PROT) : 0;
	m->flags = is_mmap2 ? get_le32(bytes + MMAP2_FLAGS) : 0;
	return 0;
}

int perfdata_parse_task(const struct perfdata *p, const struct perfdata_record *rec,
			struct perfdata_task *t)
{
	bool comm = rec->type == PERFDATA_COMM;
	const uint8_t *bytes = rec->bytes;
	struct perfdata_id id;
	size_t end;
	int r;

	if (!comm && rec->type != PERFDATA_FORK && rec->type != PERFDATA_EXIT)
		return -EINVAL;
	r = record_trailer(p, rec, comm ? COMM_NAME : TASK_SIZE, &id, &end);
	if (r)
		return r;
	*t = (struct perfdata_task){ .pid = get_le32(bytes + 8) };
	if (comm) {
		t->tid = get_le32(bytes + 12);
		t->time = id.time;
		t->exec = rec->misc & PERFDATA_MISC_COMM_EXEC;
		return 0;
	}
	t->ppid = get_le32(bytes + 12);
	t->tid = get_le32(bytes + 16);
	t->time = get_le64(bytes + 24);
	return 0;
}

/* -- Editing -------------------------------------------------------------------------- */

static void edit_inode(uint8_t *out, const struct perfdata_edit *edit, uint16_t misc)
{
	memset(out + MMAP2_INODE, 0, MMAP2_PROT - MMAP2_INODE);
	misc &= (uint16_t)~PERFDATA_MISC_BUILD_ID;
	if (edit->build_id) {
		misc |= PERFDATA_MISC_BUILD_ID;
		out[MMAP2_INODE] = PERFDATA_BUILD_ID_SIZE;
		memcpy(out + MMAP2_BUILDID, edit->build_id, PERFDATA_BUILD_ID_SIZE);
	}
	put_le16(out + 4, misc);
}

size_t perfdata_edit_mmap(const struct perfdata *p, const struct perfdata_record *rec,
			  const struct perfdata_edit *edit, uint8_t *out)
{
	bool is_mmap2 = rec->type == PERFDATA_MMAP2;
	size_t name_len, room, trailer, size;
	const struct layout *l;
	struct perfdata_mmap m;
	const char *name;

	if (perfdata_parse_mmap(p, rec, &m))
		return 0;
	name = edit->name ? edit->name : m.name;
	name_len = edit->name ? strlen(edit->name) : m.name_len;
	if (name_len >= PERFDATA_MAX_RECORD)
		return 0;
	room = is_mmap2 ? m.name_room : 0;
	if (name_len >= room)
		room = (name_len + 8) & ~(size_t)7;
	trailer = rec->size - (size_t)((const uint8_t *)m.name - rec->bytes) - m.name_room;
	size = MMAP2_NAME + room + trailer;
	if (size > PERFDATA_MAX_RECORD)
		return 0;

	put_le32(out, PERFDATA_MMAP2);
	put_le16(out + 6, (uint16_t)size);
	put_le32(out + 8, edit->pid);
	put_le32(out + 12, edit->tid);
	put_le64(out + 16, edit->addr);
	put_le64(out + 24, edit->len);
	put_le64(out + 32, edit->pgoff);
	edit_inode(out, edit, rec->misc);
	put_le32(out + MMAP2_PROT, is_mmap2 ? m.prot : PROT_READ | PROT_EXEC);
	put_le32(out + MMAP2_FLAGS, is_mmap2 ? m.flags : MAP_PRIVATE);
	memcpy(out + MMAP2_NAME, name, name_len);
	memset(out + MMAP2_NAME + name_len, 0, room - name_len);
	memcpy(out + size - trailer, rec->bytes + rec->size - trailer, trailer);
	l = attrs_of_trailer(&p->main->attrs, rec->bytes, rec->size);
	if (l && l->trailer_time)
		put_le64(out + size - l->trailer_time, edit->time);
	return size;
}
