/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From records to programs: mappings and tasks in the order of their times, each mapping
 * given to the program that its pid was at that moment.
 */
#include "inject/state.h"

#include <errno.h>
#include <string.h>

#define PROGRESS_RECORDS 65536u

int inject_new(struct inject **outp, const struct inject_options *opts)
{
	struct inject *inj = calloc(1, sizeof(*inj));

	if (!inj)
		return -ENOMEM;
	inj->opts = *opts;
	pages_init(&inj->pages);
	buf_init(&inj->names, CAP_INJECT_NAME_BYTES);
	buf_init(&inj->scratch, CAP_INJECT_NAME_BYTES);
	*outp = inj;
	return 0;
}

void inject_free(struct inject *inj)
{
	size_t i;

	if (!inj)
		return;
	pages_deinit(&inj->pages);
	for (i = 0; i < inj->pids.n; i++)
		free(inj->pids.items[i].template);
	for (i = 0; i < inj->programs.n; i++) {
		free(inj->programs.items[i].managed.items);
		free(inj->programs.items[i].dlls.items);
		free(inj->programs.items[i].more_managed.items);
		free(inj->programs.items[i].files.items);
		free(inj->programs.items[i].last_state.items);
	}
	for (i = 0; i < inj->images.n; i++) {
		elf_image_free(inj->images.items[i].elf);
		free(inj->images.items[i].path);
		free(inj->images.items[i].symbols.items);
	}
	free(inj->events.items);
	free(inj->maps.items);
	free(inj->pids.items);
	free(inj->programs.items);
	free(inj->images.items);
	free(inj->edits.items);
	free(inj->by_time.items);
	free(inj->by_seq.items);
	free(inj->pid_slots);
	free(inj->by_pid);
	free(inj->image_slots);
	free(inj->name_slots);
	buf_deinit(&inj->names);
	buf_deinit(&inj->scratch);
	free(inj);
}

/* -- programs ------------------------------------------------------------------------- */

static int event_compare(const void *ap, const void *bp)
{
	const struct event *a = ap, *b = bp;

	if (a->time != b->time)
		return a->time < b->time ? -1 : 1;
	return a->order < b->order ? -1 : a->order > b->order;
}

/* A new program under a pid; the one before it ends. NULL: no memory. */
static struct program *program_start(struct inject *inj, struct pid_info *info, uint64_t time,
				     uint32_t parent)
{
	uint32_t index = (uint32_t)inj->programs.n;
	struct program *p;

	if (!VEC_ROOM(&inj->programs))
		return NULL;
	p = &inj->programs.items[inj->programs.n++];
	*p = (struct program){
		.info.pid = info->pid,
		.start_ns = time,
		.end_ns = UINT64_MAX,
		.pid_index = (uint32_t)(info - inj->pids.items),
		.parent = parent,
		.next_of_pid = NO_INDEX,
		.first_map = NO_INDEX,
		.last_map = NO_INDEX,
		.image = NO_INDEX,
	};
	if (info->last_program == NO_INDEX) {
		info->first_program = index;
	} else {
		struct program *before = &inj->programs.items[info->last_program];

		before->next_of_pid = index;
		before->end_ns = MIN(before->end_ns, time);
		before->info.ended = true;
	}
	info->last_program = index;
	return p;
}

static struct program *program_now(struct inject *inj, struct pid_info *info)
{
	if (info->last_program != NO_INDEX)
		return &inj->programs.items[info->last_program];
	return program_start(inj, info, 0, NO_INDEX);
}

static void program_add_map(struct inject *inj, struct program *p, uint32_t index)
{
	if (p->first_map == NO_INDEX)
		p->first_map = index;
	else
		inj->maps.items[p->last_map].next = index;
	p->last_map = index;
}

static int program_event(struct inject *inj, const struct event *e)
{
	struct pid_info *info = inject_pid(inj, e->pid), *parent;
	struct program *p = NULL;

	switch (e->kind) {
	case EVENT_MAP:
		p = program_now(inj, info);
		if (p)
			program_add_map(inj, p, e->arg);
		break;
	case EVENT_EXEC:
		if (info->last_program != NO_INDEX) {
			p = &inj->programs.items[info->last_program];
			p->info.replaced = !p->info.ended;
		}
		p = program_start(inj, info, e->time, NO_INDEX);
		break;
	case EVENT_FORK:
		parent = inject_pid(inj, e->arg);
		p = program_start(inj, info, e->time, parent ? parent->last_program : NO_INDEX);
		break;
	case EVENT_EXIT:
		p = program_now(inj, info);
		if (p) {
			p->info.ended = true;
			p->end_ns = MIN(p->end_ns, e->time);
		}
		break;
	}
	return p ? 0 : -ENOMEM;
}

bool inject_is_dll(const char *name)
{
	size_t len = strlen(name);

	return len > 4 &&
	       (strcasecmp(name + len - 4, ".dll") == 0 || strcasecmp(name + len - 4, ".exe") == 0);
}

static bool map_may_be_managed(const struct inject *inj, const struct map_record *m)
{
	return m->class == MAP_RUNTIME ||
	       (m->class == MAP_FILE && inject_is_dll(inject_name(inj, m->name)));
}

static bool map_tells_runtime(const struct inject *inj, const struct map_record *m)
{
	const char *name = inject_name(inj, m->name);
	const char *slash = strrchr(name, '/');

	return (m->class == MAP_RUNTIME && !m->anon) ||
	       strcmp(slash ? slash + 1 : name, "libcoreclr.so") == 0;
}

static int span_compare(const void *ap, const void *bp)
{
	const struct span *a = ap, *b = bp;

	return a->lo < b->lo ? -1 : a->lo > b->lo;
}

/* Sorts and joins. */
void spans_tidy(struct span *spans, size_t *np)
{
	size_t i, n = 0;

	if (!*np)
		return;
	qsort(spans, *np, sizeof(*spans), span_compare);
	for (i = 0; i < *np; i++) {
		if (n && spans[i].lo <= spans[n - 1].hi)
			spans[n - 1].hi = MAX(spans[n - 1].hi, spans[i].hi);
		else
			spans[n++] = spans[i];
	}
	*np = n;
}

/* What its mappings say of a program. */
static int program_sum_up(struct inject *inj, struct program *p)
{
	const struct pid_info *info = &inj->pids.items[p->pid_index];
	uint32_t i;

	p->info.first_ns = p->start_ns ? p->start_ns : info->first_ns;
	p->info.last_ns = p->end_ns != UINT64_MAX ? p->end_ns : info->last_ns;
	for (i = p->first_map; i != NO_INDEX; i = inj->maps.items[i].next) {
		const struct map_record *m = &inj->maps.items[i];

		p->info.runtime |= map_tells_runtime(inj, m);
		p->info.maybe |= m->class == MAP_RUNTIME && m->anon;
		if (!map_may_be_managed(inj, m))
			continue;
		if (!VEC_ROOM(&p->managed))
			return -ENOMEM;
		p->managed.items[p->managed.n++] = (struct span){ m->addr, m->addr + m->len };
		if (m->class != MAP_FILE)
			continue;
		if (!VEC_ROOM(&p->dlls))
			return -ENOMEM;
		p->dlls.items[p->dlls.n++] = (struct span){ m->addr, m->addr + m->len };
	}
	spans_tidy(p->managed.items, &p->managed.n);
	spans_tidy(p->dlls.items, &p->dlls.n);
	return 0;
}

/* Each pid's programs side by side, in the order of their times. */
static int programs_by_pid(struct inject *inj)
{
	uint32_t n = 0, i;
	size_t pid;

	inj->by_pid = malloc((inj->programs.n + 1) * sizeof(*inj->by_pid));
	if (!inj->by_pid)
		return -ENOMEM;
	for (pid = 0; pid < inj->pids.n; pid++) {
		struct pid_info *info = &inj->pids.items[pid];

		info->by_pid = n;
		for (i = info->first_program; i != NO_INDEX; i = inj->programs.items[i].next_of_pid)
			inj->by_pid[n++] = i;
		info->n_programs = n - info->by_pid;
	}
	return 0;
}

/*
 * What was forked runs its parent's code until it calls exec: the addresses that it hit count
 * as its first ancestor's. (A pid that had several such ancestors is rare: then all code counts.)
 */
static int forks_to_roots(struct inject *inj)
{
	uint32_t n_pages = inj->pages.n, i;
	int r = 0;

	for (i = 0; i < inj->programs.n; i++) {
		struct program *p = &inj->programs.items[i];
		const struct program *parent =
			p->parent == NO_INDEX ? NULL : &inj->programs.items[p->parent];
		struct pid_info *info = &inj->pids.items[p->pid_index];
		uint32_t root_pid;

		p->root = parent ? parent->root : i;
		p->runs = parent && p->first_map == NO_INDEX ? parent->runs : i;
		root_pid = inj->programs.items[p->root].info.pid;
		if (!parent || root_pid == info->pid)
			continue;
		if (info->root_pid && info->root_pid != root_pid)
			inj->everything = true;
		info->root_pid = root_pid;
	}
	for (i = 0; i < n_pages && r == 0 && !inj->everything; i++) {
		const struct page page = inj->pages.items[i];
		const struct pid_info *info = inject_pid(inj, page.pid);

		if (info && info->root_pid)
			r = pages_merge(&inj->pages, info->root_pid, &page);
	}
	return r;
}

int inject_scanned(struct inject *inj)
{
	size_t i, j;
	int r;

	if (inj->no_times)
		for (i = 0; i < inj->events.n; i++)
			inj->events.items[i].time = 0;
	vec_sort(inj->events.items, inj->events.n, sizeof(*inj->events.items), event_compare);
	for (i = 0; i < inj->events.n; i++) {
		r = program_event(inj, &inj->events.items[i]);
		if (r < 0)
			return r;
	}
	r = programs_by_pid(inj);
	if (r == 0)
		r = forks_to_roots(inj);
	if (r == 0)
		r = pages_seal(&inj->pages);
	if (r < 0)
		return r;
	for (i = 0; i < inj->programs.n; i++) {
		struct program *p = &inj->programs.items[i];

		r = program_sum_up(inj, p);
		if (r < 0)
			return r;
		for (j = 0; j < p->managed.n && !p->info.sampled; j++)
			p->info.sampled = inject_hits(inj, (uint32_t)i, p->managed.items[j].lo,
						      p->managed.items[j].hi);
	}
	return 0;
}

struct program *inject_program_at(struct inject *inj, uint32_t pid, uint64_t time)
{
	const struct pid_info *info = inj->last_pid;
	const struct program *p;
	uint32_t lo = 0, hi;

	if (!info || info->pid != pid) {
		info = inject_pid(inj, pid);
		if (!info)
			return NULL;
		inj->last_pid = info;
	}
	hi = info->n_programs;
	/* the last one that had begun */
	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (inj->programs.items[inj->by_pid[info->by_pid + mid]].start_ns <= time)
			lo = mid + 1;
		else
			hi = mid;
	}
	if (!info->n_programs)
		return NULL;
	p = &inj->programs.items[inj->by_pid[info->by_pid + (lo ? lo - 1 : 0)]];
	return &inj->programs.items[p->runs];
}

bool spans_hold(const struct span *spans, size_t n, uint64_t start, uint64_t end)
{
	size_t lo = 0, hi = n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (spans[mid].hi <= start)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < n && spans[lo].lo <= start && spans[lo].hi >= end;
}

bool inject_is_managed(const struct program *p, uint64_t start, uint64_t end)
{
	return spans_hold(p->managed.items, p->managed.n, start, end);
}

bool inject_hits(const struct inject *inj, uint32_t program, uint64_t start, uint64_t end)
{
	return inj->everything ||
	       pages_any(&inj->pages, inj->programs.items[program].info.pid, start, end);
}

int inject_progress(struct inject *inj, const struct perfdata *part,
		    const struct perfdata_record *rec)
{
	if (!inj->opts.progress || ++inj->n_records % PROGRESS_RECORDS)
		return 0;
	return inj->opts.progress(inj->opts.progress_data, rec->offset, perfdata_size(part))
		       ? 0
		       : -ECANCELED;
}

/* -- what the caller asks ------------------------------------------------------------- */

size_t inject_n_programs(const struct inject *inj)
{
	return inj->programs.n;
}

const struct inject_program *inject_program(const struct inject *inj, size_t i)
{
	return &inj->programs.items[i].info;
}

int inject_each_mapping(const struct inject *inj, size_t program,
			int (*fn)(void *data, const struct inject_mapping *mapping), void *data)
{
	uint32_t i;
	int r = 0;

	for (i = inj->programs.items[program].first_map; i != NO_INDEX && r == 0;
	     i = inj->maps.items[i].next) {
		const struct map_record *m = &inj->maps.items[i];
		const char *name = inject_name(inj, m->name);
		struct inject_mapping mapping = {
			.addr = m->addr,
			.len = m->len,
			.pgoff = m->pgoff,
			.time = m->time,
			.name = name,
			.name_len = (uint32_t)strlen(name),
		};

		if (m->class == MAP_FILE)
			r = fn(data, &mapping);
	}
	return r;
}

void inject_get_span(const struct inject *inj, uint64_t *firstp, uint64_t *lastp)
{
	*firstp = inj->no_times ? 0 : inj->first_ns;
	*lastp = inj->no_times ? 0 : inj->last_ns;
}

uint64_t inject_kernel_start(const struct inject *inj)
{
	return inj->kernel_start;
}

void inject_set_code(struct inject *inj, size_t program, const struct inject_code *code)
{
	inj->programs.items[program].code = *code;
	inj->programs.items[program].has_code = true;
}

struct hit_walk {
	const struct inject *inj;
	uint32_t program;
	codemap_body_fn fn;
	void *data;
};

static int hit_body(void *data, const struct codemap_body *body)
{
	struct hit_walk *walk = data;
	struct codemap_range range = codemap_body_range(body);

	if (!inject_hits(walk->inj, walk->program, range.start, range.end))
		return 0;
	return walk->fn(walk->data, body);
}

int inject_each_hit(const struct inject *inj, size_t program, const struct codemap *map,
		    codemap_body_fn fn, void *data)
{
	struct hit_walk walk = {
		.inj = inj,
		.program = (uint32_t)program,
		.fn = fn,
		.data = data,
	};

	return codemap_each(map, hit_body, &walk);
}

static bool page_misses(const struct program *p, const struct page *page, const struct codemap *map)
{
	uint64_t addr = page->number << PAGES_SHIFT, end = addr + (UINT64_C(1) << PAGES_SHIFT);
	unsigned int i;

	for (i = 0; addr < end; i++, addr += PAGES_GRANULE)
		if (page->bits[i / 64] >> i % 64 & 1 &&
		    spans_hold(p->dlls.items, p->dlls.n, addr, addr + PAGES_GRANULE) &&
		    !codemap_lookup(map, addr, NULL) &&
		    !codemap_lookup(map, addr + PAGES_GRANULE - 1, NULL))
			return true;
	return false;
}

bool inject_misses_precompiled(const struct inject *inj, size_t program, const struct codemap *map)
{
	const struct program *p = &inj->programs.items[program];
	uint32_t i;

	for (i = 0; i < inj->pages.n; i++)
		if (inj->pages.items[i].pid == p->info.pid &&
		    page_misses(p, &inj->pages.items[i], map))
			return true;
	return false;
}
