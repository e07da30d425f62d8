/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The second reading: everything is copied, the records that the plan names are changed, and
 * those that it adds are put in.
 *
 * perf sorts records by time, but only within bounds that the data itself set. A record of our
 * own with time t stands before the first record of the file that is not older: then nothing
 * newer was seen yet, so no bound has passed t. Among equal times the position in the file decides.
 */
#include "inject/state.h"

#include <errno.h>
#include <string.h>

#define RUNTIME_NAME "[.NET]" /* fits where //anon was */

/* -- counting ------------------------------------------------------------------------- */

static enum codemap_miss look_up(const struct program *p, uint64_t addr, uint64_t time)
{
	enum codemap_miss miss = CODEMAP_HIT;

	const struct inject_code *code = &p->code;
	const struct codemap_body *body;
	struct codemap_info info;

	if (!code->to_map_ns)
		return spans_hold(p->last_state.items, p->last_state.n, addr, addr + 1)
			       ? CODEMAP_HIT
			       : CODEMAP_MISS_UNKNOWN;
	body = codemap_lookup_at(code->map, addr, code->to_map_ns(code->clock, time), &miss);
	if (!body)
		return miss;
	codemap_body_life(code->map, body, &info);
	return inject_since(code, &info) > time ? CODEMAP_MISS_NOT_YET : CODEMAP_HIT;
}

static void count_sample(struct inject *inj, const struct perfdata_sample *s)
{
	struct program *p = inject_program_at(inj, s->id.pid, inj->no_times ? 0 : s->id.time);
	enum codemap_miss miss;

	inj->stats.samples++;
	if (!p)
		return;
	p->stats.samples++;
	if (!s->user || !s->has_ip)
		return;
	if (pages_is_settled(&inj->pages, s->id.pid, s->ip, s->id.time)) {
		p->stats.managed++;
		return;
	}
	if (!inject_is_managed(p, s->ip, s->ip + 1))
		return;
	if (!p->has_code) {
		p->stats.no_code++;
		return;
	}
	miss = look_up(p, s->ip, s->id.time);
	if (miss == CODEMAP_HIT) {
		p->stats.managed++;
	} else {
		p->stats.unnamed++;
		p->stats.missed[miss]++;
	}
}

/* -- writing -------------------------------------------------------------------------- */

static int put(struct perfdata_writer *w, const void *bytes, size_t n)
{
	return w && n ? perfdata_write_bytes(w, bytes, n) : 0;
}

/* perf would look such a name up in the perf map. */
static bool is_anon(const struct perfdata_mmap *m)
{
	return m->name_len >= 6 && memcmp(m->name, "//anon", 6) == 0;
}

static int write_edited(struct inject *inj, const struct perfdata *part, struct perfdata_writer *w,
			const struct perfdata_record *rec, const struct edit *edit)
{
	const struct image *image =
		edit->image == NO_INDEX ? NULL : &inj->images.items[edit->image];
	bool by_path = inj->opts.image_dir || !image;
	struct perfdata_mmap m;
	struct perfdata_edit e = {
		.addr = edit->addr,
		.len = edit->len,
		.pgoff = edit->pgoff,
	};
	size_t n;

	if (perfdata_parse_mmap(part, rec, &m))
		return PERFDATA_E_CORRUPT;
	e.pid = m.pid;
	e.tid = m.tid;
	e.time = m.id.time;
	if (inj->opts.map_only)
		e.name = "//anon";
	else if (edit->base && is_anon(&m))
		e.name = RUNTIME_NAME;
	else if (by_path && !edit->base)
		e.name = image->path;
	if (!by_path)
		e.build_id = image->id;
	n = perfdata_edit_mmap(part, rec, &e, inj->scratch.data);
	inj->stats.rewritten++;
	return n ? put(w, inj->scratch.data, n) : PERFDATA_E_CORRUPT;
}

static int write_insert(struct inject *inj, const struct perfdata *part, struct perfdata_writer *w,
			const struct insert *insert)
{
	const struct program *p = &inj->programs.items[insert->program];
	const struct pid_info *info = &inj->pids.items[p->pid_index];
	const struct image *image = &inj->images.items[p->image];
	struct perfdata_record rec = { .size = info->template_size, .bytes = info->template };
	struct perfdata_edit e = {
		.addr = insert->addr,
		.len = insert->len,
		.pgoff = insert->pgoff,
		.pid = info->pid,
		.tid = info->pid,
		.time = insert->time,
	};
	struct perfdata_mmap m;
	size_t n;

	if (!info->template)
		return 0;
	memcpy(&rec.type, info->template, 4);
	memcpy(&rec.misc, info->template + 4, 2);
	if (perfdata_parse_mmap(part, &rec, &m))
		return PERFDATA_E_CORRUPT;
	if (inj->opts.image_dir)
		e.name = image->path;
	else if (info->template_class != MAP_RUNTIME || is_anon(&m))
		e.name = RUNTIME_NAME;
	if (!inj->opts.image_dir)
		e.build_id = image->id;
	n = perfdata_edit_mmap(part, &rec, &e, inj->scratch.data);
	inj->stats.inserted++;
	return n ? put(w, inj->scratch.data, n) : PERFDATA_E_CORRUPT;
}

static int write_until(struct inject *inj, const struct perfdata *part, struct perfdata_writer *w,
		       uint64_t time)
{
	int r = 0;

	while (r == 0 && inj->next_by_time < inj->by_time.n &&
	       inj->by_time.items[inj->next_by_time].time <= time)
		r = write_insert(inj, part, w, &inj->by_time.items[inj->next_by_time++]);
	return r;
}

static int write_map(struct inject *inj, const struct perfdata *part, struct perfdata_writer *w,
		     const struct perfdata_record *rec)
{
	uint32_t seq = inj->write_seq++;
	int r;

	if (inj->next_edit < inj->edits.n && inj->edits.items[inj->next_edit].seq == seq)
		r = write_edited(inj, part, w, rec, &inj->edits.items[inj->next_edit++]);
	else
		r = w ? perfdata_write_record(w, rec) : 0;
	while (r == 0 && inj->next_by_seq < inj->by_seq.n &&
	       inj->by_seq.items[inj->next_by_seq].seq == seq)
		r = write_insert(inj, part, w, &inj->by_seq.items[inj->next_by_seq++]);
	return r;
}

/* When the kernel made it; 0: not known, or not by the kernel. */
static uint64_t record_time(const struct perfdata *part, const struct perfdata_record *rec)
{
	struct perfdata_id id;

	if (rec->type >= PERFDATA_ATTR || perfdata_parse_id(part, rec, &id))
		return 0;
	return id.time;
}

int inject_rewrite(struct inject *inj, struct perfdata *part, struct perfdata_writer *w)
{
	struct perfdata_record rec;
	struct perfdata_sample s;
	int r;

	r = buf_reserve(&inj->scratch, PERFDATA_MAX_RECORD);
	if (r == 0)
		r = perfdata_rewind(part);
	if (r)
		return r;
	while ((r = perfdata_next(part, &rec)) == 0) {
		bool sample = rec.type == PERFDATA_SAMPLE;

		r = inject_progress(inj, part, &rec);
		if (r < 0)
			return r;
		if (sample) {
			r = perfdata_parse_sample(part, &rec, &s);
			if (r)
				return r;
			count_sample(inj, &s);
		}
		if (inj->next_by_time < inj->by_time.n) {
			r = write_until(inj, part, w, sample ? s.id.time : record_time(part, &rec));
			if (r)
				return r;
		}
		if (rec.type == PERFDATA_MMAP || rec.type == PERFDATA_MMAP2)
			r = write_map(inj, part, w, &rec);
		else if (w)
			r = perfdata_write_record(w, &rec);
		if (r)
			return r;
	}
	return r == PERFDATA_E_END ? 0 : r;
}

static void stats_add(struct inject_stats *sum, const struct inject_stats *add)
{
	size_t i;

	sum->managed += add->managed;
	sum->unnamed += add->unnamed;
	sum->no_code += add->no_code;
	for (i = 0; i < ARRAY_SIZE(sum->missed); i++)
		sum->missed[i] += add->missed[i];
}

void inject_get_stats(const struct inject *inj, struct inject_stats *stats)
{
	size_t i;

	*stats = inj->stats;
	for (i = 0; i < inj->programs.n; i++)
		stats_add(stats, &inj->programs.items[i].stats);
	for (i = 0; i < inj->images.n; i++)
		stats->images +=
			inj->images.items[i].wanted && elf_image_count(inj->images.items[i].elf);
}

void inject_program_stats(const struct inject *inj, size_t program, struct inject_stats *stats)
{
	*stats = inj->programs.items[program].stats;
}
