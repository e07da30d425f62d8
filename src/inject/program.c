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
	for (i = 0; i < inj->programs.n; i++)
		free(inj->programs.items[i].managed.items);
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
		if (p)
			p->info.started = true;
		break;
	case EVENT_FORK:
		parent = inject_pid(inj, e->arg);
		p = program_start(inj, info, e->time, parent ? parent->last_program : NO_INDEX);
		if (p) {
			p->info.started = true;
			if (p->parent != NO_INDEX)
				inj->programs.items[p->parent].forked = true;
		}
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

/* A DLL is the one kind of file with code that the runtime maps; a single file holds many. */
static bool map_may_be_managed(const struct inject *inj, const struct map_record *m)
{
	const char *name = inject_name(inj, m->name);
	size_t len = strlen(name);

	if (m->class == MAP_RUNTIME)
		return true;
	return m->class == MAP_FILE && len > 4 &&
	       (strcasecmp(name + len - 4, ".dll") == 0 || strcasecmp(name + len - 4, ".exe") == 0);
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
		p->managed.items[p->managed.n++] =
			(struct span){ .lo = m->addr, .hi = m->addr + m->len };
	}
	if (p->managed.n)
		spans_tidy(p->managed.items, &p->managed.n);
	return 0;
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
	struct program *p;

	if (!info || info->pid != pid) {
		info = inject_pid(inj, pid);
		if (!info)
			return NULL;
		inj->last_pid = info;
	}
	if (info->first_program == NO_INDEX)
		return NULL;
	p = &inj->programs.items[info->first_program];
	while (p->next_of_pid != NO_INDEX && time >= inj->programs.items[p->next_of_pid].start_ns)
		p = &inj->programs.items[p->next_of_pid];
	/* a fork runs its parent's code until it calls exec */
	while (p->parent != NO_INDEX && p->first_map == NO_INDEX)
		p = &inj->programs.items[p->parent];
	return p;
}

bool inject_is_managed(const struct program *p, uint64_t start, uint64_t end)
{
	size_t lo = 0, hi = p->managed.n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (p->managed.items[mid].hi <= start)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < p->managed.n && p->managed.items[lo].lo <= start &&
	       p->managed.items[lo].hi >= end;
}

bool inject_hits(const struct inject *inj, uint32_t program, uint64_t start, uint64_t end)
{
	size_t i;

	if (inj->everything || inj->pages.full)
		return true;
	if (pages_any(&inj->pages, inj->programs.items[program].info.pid, start, end))
		return true;
	/* what was forked from it, directly or not, without an exec */
	for (i = program + 1; inj->programs.items[program].forked && i < inj->programs.n; i++) {
		uint32_t up = inj->programs.items[i].parent;

		while (up != NO_INDEX && up > program)
			up = inj->programs.items[up].parent;
		if (up == program &&
		    pages_any(&inj->pages, inj->programs.items[i].info.pid, start, end))
			return true;
	}
	return false;
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
	const struct codemap *map;
	uint32_t program;
	codemap_body_fn fn;
	void *data;
};

static int hit_body(void *data, const struct codemap_body *body)
{
	struct hit_walk *walk = data;
	struct codemap_info info;

	codemap_body_info(walk->map, body, &info);
	if (!inject_hits(walk->inj, walk->program, info.start, info.start + info.size))
		return 0;
	return walk->fn(walk->data, body);
}

int inject_each_hit(const struct inject *inj, size_t program, const struct codemap *map,
		    codemap_body_fn fn, void *data)
{
	struct hit_walk walk = {
		.inj = inj,
		.map = map,
		.program = (uint32_t)program,
		.fn = fn,
		.data = data,
	};

	return codemap_each(map, hit_body, &walk);
}
