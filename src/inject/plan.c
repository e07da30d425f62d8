/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What to write: images, changed records, records to insert.
 *
 * A program's runtime memory becomes one *base*: its records point into the image at their own
 * addresses, where no symbol is, so that what is not known shows as a plain address. Over the
 * base lie *overlays*, one a code body that is hit: a record of the body's own range that points to
 * the body's place in the image. They come and go with the bodies:
 *
 *  - a body is loaded: its overlay, at that time;
 *  - it is unloaded: the base again, over its range;
 *  - a record of the base comes: the overlays of all bodies alive in its range follow at once,
 *    as perf drops what a new mapping covers. The heap grows page by page, each time with
 *    a record that covers all of it; such a record is cut down to what it adds, so nothing
 *    has to be said again.
 *
 * Files (DLLs) need none of this: their precompiled methods stand at fixed offsets.
 */
#include "inject/state.h"

#include <errno.h>
#include <string.h>

/* Bodies start where code is aligned anyway. */
#define IMAGE_ALIGN 16u
#define IMAGE_PAGE  UINT64_C(4096)

/* A body that is hit, with its life in the recording's time. */
struct body {
	const struct codemap_body *body;
	uint64_t start, end, load, unload;
	uint64_t addr; /* in the image */
	bool hit, bytes;
};

struct change {
	uint64_t time;
	uint64_t order; /* among those that were always there */
	uint32_t body;
	bool load;
};

struct covered {
	uint64_t lo, hi;
	uint64_t bias; /* file offset of address 0; runtime memory of one file goes on, or not */
	uint32_t name;
};

struct plan {
	struct inject *inj;
	struct program *program;
	uint32_t index;
	VEC(struct body) bodies;
	VEC(struct change) changes;
	VEC(struct covered) covered;
	VEC(uint32_t) live; /* bodies, disjoint, by address */
	uint64_t next_addr;
	size_t n_inserts; /* of others, before */
};

static void plan_deinit(struct plan *plan)
{
	free(plan->bodies.items);
	free(plan->changes.items);
	free(plan->covered.items);
	free(plan->live.items);
}

/* -- images --------------------------------------------------------------------------- */

/* A part of a file name: what may be in one, and hides or misleads nobody. */
static void make_label(char *label, size_t size, const char *path)
{
	const char *slash = strrchr(path, '/');
	size_t i;

	snprintf(label, size, "%s", slash ? slash + 1 : path);
	for (i = 0; label[i]; i++) {
		char c = label[i];

		if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && !(c >= '0' && c <= '9') &&
		    !(i && strchr(".-+", c)))
			label[i] = '_';
	}
}

struct image *inject_image_new(struct inject *inj, uint16_t machine, const char *path)
{
	struct image *image;

	if (!VEC_ROOM(&inj->images))
		return NULL;
	image = &inj->images.items[inj->images.n];
	*image = (struct image){ 0 };
	make_label(image->label, sizeof(image->label), path);
	if (elf_image_new(&image->elf, machine, CAP_IMAGE_BYTES) < 0)
		return NULL;
	inj->images.n++;
	return image;
}

int inject_image_add(struct inject *inj, struct image *image, const struct inject_code *code,
		     const struct codemap_body *body, uint64_t addr, bool hit, bool want_bytes)
{
	const uint8_t *bytes = NULL;
	struct codemap_info info;
	int r;

	codemap_body_info(code->map, body, &info);
	buf_clear(&inj->scratch);
	r = names_append(&inj->scratch, &info.name, inj->opts.style, !inj->opts.no_tiers);
	if (r < 0)
		return r;
	if (want_bytes && code->bytes)
		bytes = code->bytes(code->data, &info);
	r = elf_image_add(image->elf, addr, info.size, (const char *)inj->scratch.data,
			  inj->scratch.len, bytes);
	if (r)
		return r < 0 ? r : 0; /* over a cap of the image: it stays without a name */
	inj->stats.bodies++;
	inj->stats.hit += hit;
	inj->stats.with_bytes += bytes != NULL;
	return 0;
}

/* -- bodies --------------------------------------------------------------------------- */

static uint64_t to_file(const struct inject_code *code, uint64_t ns)
{
	if (!ns || ns == UINT64_MAX)
		return ns;
	return MAX(code->to_file_ns(code->clock, ns), UINT64_C(1));
}

/*
 * Since when a body counts, in the recording's time. What only a rundown knows was there before,
 * for a time that nobody can tell; if it is of a kind that can be freed, its address may have been
 * another's before: then it counts from its announcement on.
 */
uint64_t inject_since(const struct inject_code *code, const struct codemap_info *info)
{
	return to_file(code, info->freeable ? info->announced : info->load);
}

/*
 * What is alive at the end has been since its load. But a pid's other programs may have had
 * something else there, and samples outside of managed memory are not counted at all.
 */
static int settle(struct plan *plan, const struct codemap_info *info)
{
	const struct pid_info *pid = &plan->inj->pids.items[plan->program->pid_index];
	const struct inject_code *code = &plan->program->code;
	uint64_t end = info->start + info->size;

	if (info->unload != UINT64_MAX || pid->first_program != pid->last_program ||
	    !inject_is_managed(plan->program, info->start, end))
		return 0;
	return pages_settle(&plan->inj->pages, pid->pid, info->start, end,
			    code->to_file_ns ? inject_since(code, info) : 0);
}

static int plan_last(struct plan *plan, uint64_t start, uint64_t end)
{
	struct program *p = plan->program;

	if (!VEC_ROOM(&p->last_state))
		return -ENOMEM;
	p->last_state.items[p->last_state.n++] = (struct span){ start, end };
	return 0;
}

static int plan_body(void *data, const struct codemap_body *cb)
{
	struct plan *plan = data;
	const struct inject_code *code = &plan->program->code;
	const struct codemap_range range = codemap_body_range(cb);
	bool hit = inject_hits(plan->inj, plan->index, range.start, range.end);
	bool jitted = names_is_jitted(range.flags), wanted, taken = false;
	const struct program *p = plan->program;
	struct codemap_info info;
	struct body *body;
	int r = 0;

	wanted = hit || plan->inj->opts.all_bodies;
	if (!wanted && jitted)
		return 0;
	codemap_body_life(code->map, cb, &info);
	if (code->to_file_ns &&
	    (to_file(code, info.unload) <= p->start_ns || inject_since(code, &info) >= p->end_ns))
		return 0; /* of another program of that pid */
	if (!jitted)
		r = inject_file_body(plan->inj, plan->index, cb, &info, hit, &taken);
	if (r == 0 && hit)
		r = settle(plan, &info);
	if (r == 0 && taken && !code->to_file_ns)
		r = plan_last(plan, info.start, info.start + info.size);
	if (r < 0 || taken || !wanted)
		return r;
	if (!VEC_ROOM(&plan->bodies))
		return -ENOMEM;
	body = &plan->bodies.items[plan->bodies.n];
	*body = (struct body){
		.body = cb,
		.start = info.start,
		.end = info.start + info.size,
		.unload = UINT64_MAX,
		.hit = hit,
		.bytes = hit && code->bytes && code->bytes(code->data, &info),
	};
	if (code->to_file_ns) {
		body->load = inject_since(code, &info);
		body->unload = to_file(code, info.unload);
	} else {
		body->load = info.load; /* of those at one address the last one counts */
	}
	plan->bodies.n++;
	return 0;
}

static int body_compare(const void *ap, const void *bp)
{
	const struct body *a = ap, *b = bp;

	if (a->start != b->start)
		return a->start < b->start ? -1 : 1;
	return a->load < b->load ? -1 : a->load > b->load;
}

static int change_compare(const void *ap, const void *bp)
{
	const struct change *a = ap, *b = bp;

	if (a->time != b->time)
		return a->time < b->time ? -1 : 1;
	if (a->load != b->load)
		return (int)a->load - (int)b->load; /* unloads first: they make room */
	return a->order < b->order ? -1 : a->order > b->order;
}

/* Bodies with bytes come first: an image has room for those only. */
static void plan_places(struct plan *plan)
{
	int bytes;
	size_t i;

	for (bytes = 1; bytes >= 0; bytes--) {
		for (i = 0; i < plan->bodies.n; i++) {
			struct body *b = &plan->bodies.items[i];

			if (b->bytes != bytes)
				continue;
			b->addr = plan->next_addr;
			plan->next_addr += (b->end - b->start + IMAGE_ALIGN - 1) &
					   ~(uint64_t)(IMAGE_ALIGN - 1);
		}
	}
}

/* What happens when. first: what was before it counts as always there. */
static int plan_changes(struct plan *plan, uint64_t first)
{
	size_t i;

	vec_sort(plan->bodies.items, plan->bodies.n, sizeof(*plan->bodies.items), body_compare);
	plan_places(plan);
	for (i = 0; i < plan->bodies.n; i++) {
		struct body *b = &plan->bodies.items[i];

		if (b->unload <= first)
			continue; /* gone before the recording began */
		if (!VEC_ROOM(&plan->changes))
			return -ENOMEM;
		plan->changes.items[plan->changes.n++] = (struct change){
			.time = b->load <= first ? 0 : b->load,
			.order = b->load,
			.body = (uint32_t)i,
			.load = true,
		};
		if (b->unload == UINT64_MAX || b->unload >= plan->program->end_ns)
			continue;
		if (!VEC_ROOM(&plan->changes))
			return -ENOMEM;
		plan->changes.items[plan->changes.n++] =
			(struct change){ .time = b->unload, .body = (uint32_t)i };
	}
	vec_sort(plan->changes.items, plan->changes.n, sizeof(*plan->changes.items),
		 change_compare);
	return 0;
}

/* -- what lives where, while time passes ---------------------------------------------- */

/* Index of the first live body that ends behind addr. */
static size_t live_find(const struct plan *plan, uint64_t addr)
{
	size_t lo = 0, hi = plan->live.n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (plan->bodies.items[plan->live.items[mid]].end <= addr)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static size_t covered_find(const struct plan *plan, uint64_t addr)
{
	size_t lo = 0, hi = plan->covered.n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (plan->covered.items[mid].hi <= addr)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* Takes a range out of the base's memory. */
static int cover_cut(struct plan *plan, uint64_t lo, uint64_t hi)
{
	size_t i = covered_find(plan, lo), j;
	struct covered *c;

	if (i < plan->covered.n && plan->covered.items[i].lo < lo) {
		if (!VEC_ROOM(&plan->covered))
			return -ENOMEM;
		c = &plan->covered.items[i];
		memmove(c + 1, c, (plan->covered.n - i) * sizeof(*c));
		plan->covered.n++;
		c[0].hi = lo;
		c[1].lo = lo;
		i++;
	}
	for (j = i; j < plan->covered.n && plan->covered.items[j].hi <= hi; j++)
		;
	if (j < plan->covered.n && plan->covered.items[j].lo < hi)
		plan->covered.items[j].lo = hi;
	c = plan->covered.items;
	if (plan->covered.n)
		memmove(c + i, c + j, (plan->covered.n - j) * sizeof(*c));
	plan->covered.n -= j - i;
	return 0;
}

static int cover_add(struct plan *plan, const struct covered *add)
{
	struct covered *c;
	size_t i;
	int r;

	r = cover_cut(plan, add->lo, add->hi);
	if (r)
		return r;
	if (plan->covered.n >= CAP_INJECT_PIECES)
		return INJECT_E_FULL;
	if (!VEC_ROOM(&plan->covered))
		return -ENOMEM;
	i = covered_find(plan, add->lo);
	c = &plan->covered.items[i];
	memmove(c + 1, c, (plan->covered.n - i) * sizeof(*c));
	*c = *add;
	plan->covered.n++;
	return 0;
}

/*
 * What a record of runtime memory adds to the same memory that is known already: one piece; its
 * first byte when it adds nothing; all of it when that cannot be told in one.
 */
static struct span cover_new(const struct plan *plan, const struct covered *add)
{
	struct span piece = { 0 };
	uint64_t at = add->lo;
	size_t i, n = 0;

	for (i = covered_find(plan, at); at < add->hi; i++) {
		const struct covered *c = i < plan->covered.n ? &plan->covered.items[i] : NULL;
		uint64_t lo = c ? MIN(MAX(c->lo, at), add->hi) : add->hi;

		if (lo > at) {
			piece = (struct span){ at, lo };
			n++;
		}
		if (c && c->lo < add->hi && (c->name != add->name || c->bias != add->bias))
			n = 2; /* something else was there */
		at = c ? MIN(c->hi, add->hi) : add->hi;
	}
	if (n == 0)
		return (struct span){ add->lo, add->lo + 1 };
	return n == 1 ? piece : (struct span){ add->lo, add->hi };
}

/* -- records -------------------------------------------------------------------------- */

/* An address where the image has no symbol: the address itself, as images are small. */
static uint64_t base_offset(const struct plan *plan, uint64_t addr)
{
	return addr >= plan->next_addr ? addr : addr + (UINT64_C(1) << 47);
}

static int insert_range(struct plan *plan, uint64_t time, uint32_t seq, const struct body *b,
			bool base)
{
	struct inject *inj = plan->inj;
	struct insert insert = {
		.time = time,
		.seq = seq,
		.program = plan->index,
		.addr = b->start,
		.len = b->end - b->start,
		.pgoff = base ? base_offset(plan, b->start) : b->addr,
	};

	if (inj->by_time.n + inj->by_seq.n - plan->n_inserts >= CAP_INJECT_INSERTS)
		return INJECT_E_FULL;
	if (seq == NO_INDEX) {
		if (!VEC_ROOM(&inj->by_time))
			return -ENOMEM;
		inj->by_time.items[inj->by_time.n++] = insert;
	} else {
		if (!VEC_ROOM(&inj->by_seq))
			return -ENOMEM;
		inj->by_seq.items[inj->by_seq.n++] = insert;
	}
	return 0;
}

int inject_edit(struct inject *inj, uint32_t seq, uint32_t image, bool base, uint64_t addr,
		uint64_t len, uint64_t pgoff)
{
	if (!VEC_ROOM(&inj->edits))
		return -ENOMEM;
	inj->edits.items[inj->edits.n++] = (struct edit){
		.seq = seq,
		.image = image,
		.base = base,
		.addr = addr,
		.len = len,
		.pgoff = pgoff,
	};
	return 0;
}

static int plan_map(struct plan *plan, const struct map_record *m)
{
	struct covered all = {
		.lo = m->addr,
		.hi = m->addr + m->len,
		.bias = m->anon ? 0 : m->pgoff - m->addr,
		.name = m->name,
	};
	struct span piece;
	size_t i;
	int r;

	if (m->class != MAP_RUNTIME)
		return cover_cut(plan, all.lo, all.hi);
	piece = cover_new(plan, &all);
	r = cover_add(plan, &all);
	if (r == 0)
		r = inject_edit(plan->inj, m->seq, plan->program->image, true, piece.lo,
				piece.hi - piece.lo, base_offset(plan, piece.lo));
	for (i = live_find(plan, piece.lo); i < plan->live.n && r == 0; i++) {
		const struct body *b = &plan->bodies.items[plan->live.items[i]];

		if (b->start >= piece.hi)
			break;
		r = insert_range(plan, m->time, m->seq, b, false);
	}
	return r;
}

static int plan_unload(struct plan *plan, const struct change *change)
{
	const struct body *b = &plan->bodies.items[change->body];
	size_t i = live_find(plan, b->start);

	if (i == plan->live.n || plan->live.items[i] != change->body)
		return 0; /* its place was taken before */
	memmove(&plan->live.items[i], &plan->live.items[i + 1],
		(plan->live.n - i - 1) * sizeof(*plan->live.items));
	plan->live.n--;
	return insert_range(plan, change->time, NO_INDEX, b, true);
}

static int plan_load(struct plan *plan, const struct change *change)
{
	const struct body *b = &plan->bodies.items[change->body];
	size_t i = live_find(plan, b->start), j = i;

	while (j < plan->live.n && plan->bodies.items[plan->live.items[j]].start < b->end)
		j++;
	if (!VEC_ROOM(&plan->live))
		return -ENOMEM;
	memmove(&plan->live.items[i + 1], &plan->live.items[j],
		(plan->live.n - j) * sizeof(*plan->live.items));
	plan->live.items[i] = change->body;
	plan->live.n = plan->live.n - (j - i) + 1;
	/* what was always there comes with the record of its memory */
	return change->time ? insert_range(plan, change->time, NO_INDEX, b, false) : 0;
}

static int plan_change(struct plan *plan, const struct change *change)
{
	return change->load ? plan_load(plan, change) : plan_unload(plan, change);
}

/*
 * Memory whose records are missing or late: perf -t sees only what its own threads map, and memory
 * that mprotect makes executable shows only with the next change of its mapping. What was always
 * there and has no record by now comes right after this one.
 */
static int plan_orphans(struct plan *plan, const struct map_record *m)
{
	size_t i, c;
	int r = 0;

	for (i = 0; i < plan->live.n && r == 0; i++) {
		const struct body *b = &plan->bodies.items[plan->live.items[i]];

		c = covered_find(plan, b->start);
		if (c == plan->covered.n || plan->covered.items[c].lo >= b->end)
			r = insert_range(plan, m->time, m->seq, b, false);
	}
	return r;
}

/* Records and bodies in the order of time. */
static int plan_play(struct plan *plan)
{
	struct inject *inj = plan->inj;
	uint32_t m = plan->program->first_map;
	bool orphans = false;
	size_t c = 0;
	int r = 0;

	while (c < plan->changes.n && !plan->changes.items[c].time && r == 0)
		r = plan_change(plan, &plan->changes.items[c++]);
	while (r == 0 && (m != NO_INDEX || c < plan->changes.n)) {
		const struct map_record *map = m != NO_INDEX ? &inj->maps.items[m] : NULL;

		if (map && (c == plan->changes.n || map->time <= plan->changes.items[c].time)) {
			r = plan_map(plan, map);
			m = map->next;
			/* the last of those that were there from the start, or the first of all */
			if (r == 0 && !orphans && (m == NO_INDEX || inj->maps.items[m].time)) {
				r = plan_orphans(plan, map);
				orphans = true;
			}
		} else {
			r = plan_change(plan, &plan->changes.items[c++]);
		}
	}
	return r;
}

/* What is left at the end: without times, that is what samples are counted by. */
static int plan_last_state(struct plan *plan)
{
	struct program *p = plan->program;
	size_t i;

	for (i = 0; i < plan->live.n; i++) {
		const struct body *b = &plan->bodies.items[plan->live.items[i]];

		if (plan_last(plan, b->start, b->end) < 0)
			return -ENOMEM;
	}
	spans_tidy(p->last_state.items, &p->last_state.n);
	return 0;
}

static int join_managed(struct program *p)
{
	size_t i;

	for (i = 0; i < p->more_managed.n; i++) {
		if (!VEC_ROOM(&p->managed))
			return -ENOMEM;
		p->managed.items[p->managed.n++] = p->more_managed.items[i];
	}
	spans_tidy(p->managed.items, &p->managed.n);
	return 0;
}

static int plan_program(struct inject *inj, uint32_t index)
{
	_cleanup_(plan_deinit) struct plan plan = {
		.inj = inj,
		.program = &inj->programs.items[index],
		.index = index,
		.next_addr = ELF_IMAGE_BASE,
		.n_inserts = inj->by_time.n + inj->by_seq.n,
	};
	/* without times everything was always there */
	uint64_t first =
		plan.program->code.to_file_ns ? MAX(inj->first_ns, UINT64_C(1)) : UINT64_MAX - 1;
	char label[32];
	struct image *image;
	size_t i;
	int r;

	r = codemap_each(plan.program->code.map, plan_body, &plan);
	if (r == 0)
		r = join_managed(plan.program);
	if (r == 0)
		r = plan_changes(&plan, first);
	if (r == 0 && !plan.bodies.n && !plan.program->code.to_file_ns)
		r = plan_last_state(&plan);
	if (r < 0 || !plan.bodies.n)
		return r;
	snprintf(label, sizeof(label), "jit-%u", plan.program->info.pid);
	image = inject_image_new(inj, plan.program->code.machine, label);
	if (!image)
		return -ENOMEM;
	image->wanted = true;
	plan.program->image = (uint32_t)inj->images.n - 1;
	for (i = 0; i < plan.bodies.n; i++) {
		const struct body *b = &plan.bodies.items[i];

		r = inject_image_add(inj, image, &plan.program->code, b->body, b->addr, b->hit,
				     b->bytes);
		if (r < 0)
			return r;
	}
	r = plan_play(&plan);
	return r == 0 && !plan.program->code.to_file_ns ? plan_last_state(&plan) : r;
}

/* A program that needs more than any should goes without names; the others do not. */
static int plan_program_or_not(struct inject *inj, uint32_t index)
{
	size_t edits = inj->edits.n, by_time = inj->by_time.n, by_seq = inj->by_seq.n;
	struct program *p = &inj->programs.items[index];
	int r;

	r = plan_program(inj, index);
	if (r <= 0)
		return r;
	inj->edits.n = edits;
	inj->by_time.n = by_time;
	inj->by_seq.n = by_seq;
	if (p->image != NO_INDEX)
		inj->images.items[p->image].wanted = false;
	p->has_code = false;
	p->info.over_cap = true;
	return 0;
}

/* -- all of it ------------------------------------------------------------------------ */

static int plan_map_only(struct inject *inj)
{
	size_t i, j;
	uint32_t m;
	int r = 0;

	for (i = 0; i < inj->programs.n; i++) {
		if (!inj->programs.items[i].info.runtime)
			continue;
		for (m = inj->programs.items[i].first_map; m != NO_INDEX && r == 0;
		     m = inj->maps.items[m].next) {
			const struct map_record *map = &inj->maps.items[m];

			for (j = 0; j < inj->programs.items[i].managed.n; j++) {
				const struct span *s = &inj->programs.items[i].managed.items[j];

				if (map->class != MAP_DATA && map->addr >= s->lo &&
				    map->addr < s->hi)
					break;
			}
			if (j < inj->programs.items[i].managed.n)
				r = inject_edit(inj, map->seq, NO_INDEX, true, map->addr, map->len,
						map->pgoff);
		}
	}
	return r;
}

static int edit_compare(const void *ap, const void *bp)
{
	const struct edit *a = ap, *b = bp;

	return a->seq < b->seq ? -1 : a->seq > b->seq;
}

static int insert_compare(const void *ap, const void *bp)
{
	const struct insert *a = ap, *b = bp;

	if (a->seq != b->seq)
		return a->seq < b->seq ? -1 : 1;
	if (a->time != b->time)
		return a->time < b->time ? -1 : 1;
	if (a->program != b->program)
		return a->program < b->program ? -1 : 1;
	return a->rank < b->rank ? -1 : a->rank > b->rank;
}

static void sort_inserts(struct insert *items, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++)
		items[i].rank = i;
	vec_sort(items, n, sizeof(*items), insert_compare);
}

static int plan_finish_image(struct inject *inj, struct image *image)
{
	char hex[2 * ELF_BUILD_ID_SIZE + 1];
	size_t i;
	int r;

	if (image->is_file && image->wanted) {
		r = inject_file_image(inj, image);
		if (r < 0)
			return r;
	}
	r = elf_image_finish(image->elf, image->id);
	if (r < 0 || !inj->opts.image_dir)
		return r;
	for (i = 0; i < ELF_BUILD_ID_SIZE; i++)
		snprintf(hex + 2 * i, 3, "%02x", image->id[i]);
	if (asprintf(&image->path, "%s/%s-%.16s.so", inj->opts.image_dir, image->label, hex) < 0) {
		image->path = NULL;
		return -ENOMEM;
	}
	return 0;
}

int inject_plan(struct inject *inj)
{
	size_t i;
	int r = 0;

	if (inj->opts.map_only)
		r = plan_map_only(inj);
	for (i = 0; i < inj->programs.n && r == 0; i++)
		if (inj->programs.items[i].has_code)
			r = plan_program_or_not(inj, (uint32_t)i);
	for (i = 0; i < inj->images.n && r == 0; i++)
		r = plan_finish_image(inj, &inj->images.items[i]);
	if (r == 0)
		r = inject_file_records(inj);
	if (r)
		return r;
	vec_sort(inj->edits.items, inj->edits.n, sizeof(*inj->edits.items), edit_compare);
	sort_inserts(inj->by_seq.items, inj->by_seq.n);
	sort_inserts(inj->by_time.items, inj->by_time.n);
	return 0;
}

bool inject_is_idle(const struct inject *inj)
{
	return !inj->edits.n && !inj->by_seq.n && !inj->by_time.n;
}

size_t inject_n_images(const struct inject *inj)
{
	return inj->images.n;
}

const struct elf_image *inject_image(const struct inject *inj, size_t i, const char **labelp,
				     const uint8_t **idp)
{
	const struct image *image = &inj->images.items[i];

	*labelp = image->path ? image->path : image->label;
	*idp = image->id;
	return image->wanted && elf_image_count(image->elf) ? image->elf : NULL;
}
