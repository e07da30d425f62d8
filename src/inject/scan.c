/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first reading: mappings and tasks are kept, of the samples only which code they hit.
 *
 * Nothing is resolved here: the order of a file's records is not the order of their times, and the
 * code maps are not known yet.
 */
#include "inject/state.h"

#include <errno.h>
#include <string.h>

#include "base/hash.h"
#include "base/reader.h"

#define KERNEL_PID UINT32_MAX

bool vec_grow(void **itemsp, size_t *sizep, size_t item)
{
	size_t size = *sizep ? *sizep * 2 : 16;
	void *items = realloc(*itemsp, size * item);

	if (!items)
		return false;
	*itemsp = items;
	*sizep = size;
	return true;
}

void vec_sort(void *items, size_t n, size_t item, int (*compare)(const void *, const void *))
{
	const char *at = items;
	size_t i;

	for (i = 1; i < n; i++, at += item) {
		if (compare(at, at + item) > 0) {
			qsort(items, n, item, compare);
			return;
		}
	}
}

/* -- pids and names ------------------------------------------------------------------- */

static uint32_t *pid_slot(const struct inject *inj, uint32_t pid)
{
	uint32_t mask = inj->n_pid_slots - 1;
	uint32_t i = (uint32_t)hash_u64(hash_seed(), pid) & mask;

	while (inj->pid_slots[i] != NO_INDEX && inj->pids.items[inj->pid_slots[i]].pid != pid)
		i = (i + 1) & mask;
	return &inj->pid_slots[i];
}

struct pid_info *inject_pid(const struct inject *inj, uint32_t pid)
{
	uint32_t i = inj->n_pid_slots ? *pid_slot(inj, pid) : NO_INDEX;

	return i == NO_INDEX ? NULL : &inj->pids.items[i];
}

struct pid_info *inject_pid_get(struct inject *inj, uint32_t pid)
{
	struct pid_info *info = inject_pid(inj, pid);
	uint32_t i;

	if (info)
		return info;
	if (!VEC_ROOM(&inj->pids))
		return NULL;
	if (inj->pids.n * 2 >= inj->n_pid_slots) {
		uint32_t n = inj->n_pid_slots ? inj->n_pid_slots * 2 : 256;
		uint32_t *slots = malloc(n * sizeof(*slots));

		if (!slots)
			return NULL;
		memset(slots, 0xff, n * sizeof(*slots));
		free(inj->pid_slots);
		inj->pid_slots = slots;
		inj->n_pid_slots = n;
		for (i = 0; i < inj->pids.n; i++)
			*pid_slot(inj, inj->pids.items[i].pid) = i;
	}
	*pid_slot(inj, pid) = (uint32_t)inj->pids.n;
	info = &inj->pids.items[inj->pids.n++];
	*info = (struct pid_info){ .pid = pid,
				   .first_program = NO_INDEX,
				   .last_program = NO_INDEX };
	return info;
}

const char *inject_name(const struct inject *inj, uint32_t name)
{
	return (const char *)inj->names.data + name;
}

static uint32_t *name_slot(const struct inject *inj, const char *s, size_t len)
{
	uint32_t mask = inj->n_name_slots - 1;
	uint32_t i = (uint32_t)hash_bytes(hash_seed(), s, len) & mask;

	while (inj->name_slots[i] != NO_INDEX) {
		const char *there = inject_name(inj, inj->name_slots[i]);

		if (strlen(there) == len && memcmp(there, s, len) == 0)
			break;
		i = (i + 1) & mask;
	}
	return &inj->name_slots[i];
}

static int names_grow(struct inject *inj)
{
	uint32_t n = inj->n_name_slots ? inj->n_name_slots * 2 : 1024;
	uint32_t *slots = malloc(n * sizeof(*slots));
	size_t at;

	if (!slots)
		return -ENOMEM;
	memset(slots, 0xff, n * sizeof(*slots));
	free(inj->name_slots);
	inj->name_slots = slots;
	inj->n_name_slots = n;
	for (at = 0; at < inj->names.len; at += strlen(inject_name(inj, (uint32_t)at)) + 1) {
		const char *s = inject_name(inj, (uint32_t)at);

		*name_slot(inj, s, strlen(s)) = (uint32_t)at;
	}
	return 0;
}

static int inject_intern(struct inject *inj, const char *s, size_t len, uint32_t *namep)
{
	uint32_t *slot;
	int r;

	len = strnlen(s, len);
	if (inj->n_names * 2 >= inj->n_name_slots) {
		r = names_grow(inj);
		if (r < 0)
			return r;
	}
	slot = name_slot(inj, s, len);
	if (*slot == NO_INDEX) {
		uint32_t at = (uint32_t)inj->names.len;

		r = buf_reserve(&inj->names, len + 1);
		if (r < 0)
			return r == -ENOSPC ? INJECT_E_FULL : r;
		buf_append(&inj->names, s, len);
		buf_putc(&inj->names, '\0');
		*slot = at;
		inj->n_names++;
	}
	*namep = *slot;
	return 0;
}

/* -- records -------------------------------------------------------------------------- */

static int scan_event(struct inject *inj, enum event_kind kind, uint64_t time, uint32_t pid,
		      uint32_t arg)
{
	if (inj->events.n >= CAP_INJECT_EVENTS)
		return INJECT_E_FULL;
	if (!VEC_ROOM(&inj->events))
		return -ENOMEM;
	inj->events.items[inj->events.n++] = (struct event){
		.time = time,
		.order = inj->order,
		.pid = pid,
		.arg = arg,
		.kind = kind,
	};
	return 0;
}

static void scan_time(struct inject *inj, struct pid_info *info, uint64_t time)
{
	if (!time)
		return;
	if (!inj->first_ns || time < inj->first_ns)
		inj->first_ns = time;
	inj->last_ns = MAX(inj->last_ns, time);
	if (!info->first_ns || time < info->first_ns)
		info->first_ns = time;
	info->last_ns = MAX(info->last_ns, time);
}

/* Names that perf looks up in the perf map, and never in a file. */
static bool name_is_anon(const char *name)
{
	return strncmp(name, "//anon", 6) == 0 || strncmp(name, "/anon_hugepage", 14) == 0 ||
	       strncmp(name, "/dev/zero", 9) == 0 || strncmp(name, "[anon:", 6) == 0 || !*name;
}

/* The runtime's double mapping: a memfd since 7, a file in /dev/shm where there is no memfd. */
static bool name_is_runtime(const char *name)
{
	return name_is_anon(name) || strstr(name, "doublemapper");
}

/* The best record so far to make others from: of the runtime's memory, or any. */
static int scan_template(struct pid_info *info, const struct perfdata_record *rec,
			 enum map_class class)
{
	uint8_t *template;

	if (info->template && (class != MAP_RUNTIME || info->template_class == MAP_RUNTIME))
		return 0;
	template = realloc(info->template, rec->size);
	if (!template)
		return -ENOMEM;
	info->template = memcpy(template, rec->bytes, rec->size);
	info->template_size = rec->size;
	info->template_class = class;
	return 0;
}

static int scan_map(struct inject *inj, const struct perfdata *part,
		    const struct perfdata_record *rec)
{
	struct map_record map = { .seq = inj->seq++, .next = NO_INDEX };
	struct perfdata_mmap m;
	struct pid_info *info;
	const char *name;
	int r;

	r = perfdata_parse_mmap(part, rec, &m);
	if (r)
		return r;
	if (m.pid == KERNEL_PID) {
		/* "[kernel.kallsyms]_text": its offset is the symbol's address */
		if (!inj->kernel_start && m.name_len > 8 && memcmp(m.name, "[kernel.", 8) == 0)
			inj->kernel_start = m.pgoff ? m.pgoff : m.addr;
		return 0;
	}
	if (!m.len || m.addr + m.len < m.addr)
		return 0;
	if (inj->maps.n >= CAP_INJECT_EVENTS)
		return INJECT_E_FULL;
	r = inject_intern(inj, m.name, m.name_len, &map.name);
	if (r)
		return r;
	info = inject_pid_get(inj, m.pid);
	if (!info || !VEC_ROOM(&inj->maps))
		return -ENOMEM;
	scan_time(inj, info, m.id.time);
	name = inject_name(inj, map.name);
	map.addr = m.addr;
	map.len = m.len;
	map.pgoff = m.pgoff;
	map.time = m.id.time;
	map.pid = m.pid;
	if (m.inode)
		memcpy(map.inode, m.inode, sizeof(map.inode));
	map.anon = name_is_anon(name);
	map.class = !m.executable ? MAP_DATA : name_is_runtime(name) ? MAP_RUNTIME : MAP_FILE;
	if (map.class != MAP_DATA) {
		r = scan_template(info, rec, map.class);
		if (r < 0)
			return r;
	}
	inj->maps.items[inj->maps.n] = map;
	return scan_event(inj, EVENT_MAP, m.id.time, m.pid, (uint32_t)inj->maps.n++);
}

static int scan_task(struct inject *inj, const struct perfdata *part,
		     const struct perfdata_record *rec)
{
	struct perfdata_task t;
	struct perfdata_id id;
	struct pid_info *info;
	int r;

	r = perfdata_parse_task(part, rec, &t);
	if (r == 0)
		r = perfdata_parse_id(part, rec, &id);
	if (r)
		return r;
	/* the one that perf sorts by; the one in the body is a little later */
	if (id.time)
		t.time = id.time;
	if (t.pid == KERNEL_PID || !t.pid)
		return 0;
	info = inject_pid_get(inj, t.pid);
	if (!info)
		return -ENOMEM;
	scan_time(inj, info, t.time);
	if (rec->type == PERFDATA_COMM)
		return t.exec ? scan_event(inj, EVENT_EXEC, t.time, t.pid, 0) : 0;
	/* threads come and go; the program is there as long as its first one */
	if (rec->type == PERFDATA_FORK)
		return t.pid != t.ppid ? scan_event(inj, EVENT_FORK, t.time, t.pid, t.ppid) : 0;
	return t.pid == t.tid ? scan_event(inj, EVENT_EXIT, t.time, t.pid, 0) : 0;
}

static int scan_chain(struct inject *inj, const struct perfdata_sample *s)
{
	bool user = s->user;
	struct reader in;
	uint64_t i;
	int r;

	reader_init(&in, s->chain, s->n_chain * 8);
	for (i = 0; i < s->n_chain; i++) {
		uint64_t ip = reader_u64(&in);

		if (ip >= PERFDATA_CONTEXT_MAX) {
			user = ip == PERFDATA_CONTEXT_USER;
			continue;
		}
		if (!user || !ip)
			continue;
		/* a return address: the call before it may be the last of its body */
		r = pages_mark(&inj->pages, s->id.pid, ip - 1);
		if (r == 0 && ip % PAGES_GRANULE == 0)
			r = pages_mark(&inj->pages, s->id.pid, ip);
		if (r < 0)
			return r;
	}
	return 0;
}

static int scan_sample(struct inject *inj, const struct perfdata *part,
		       const struct perfdata_record *rec, struct pid_info **lastp)
{
	struct perfdata_sample s;
	struct pid_info *info = *lastp;
	int r;

	r = perfdata_parse_sample(part, rec, &s);
	if (r)
		return r;
	if (!info || info->pid != s.id.pid) {
		info = inject_pid_get(inj, s.id.pid);
		if (!info)
			return -ENOMEM;
		*lastp = info;
	}
	scan_time(inj, info, s.id.time);
	if (s.user && s.has_ip) {
		r = pages_mark(&inj->pages, s.id.pid, s.ip);
		if (r < 0)
			return r;
	}
	return s.n_chain ? scan_chain(inj, &s) : 0;
}

int inject_scan(struct inject *inj, struct perfdata *part)
{
	struct perfdata_record rec;
	struct pid_info *last = NULL; /* of samples: moves when pids grow */
	struct perfdata_clock clock;
	int r;

	r = perfdata_rewind(part);
	if (r)
		return r;
	while ((r = perfdata_next(part, &rec)) == 0) {
		inj->order++;
		r = inject_progress(inj, part, &rec);
		if (r < 0)
			return r;
		switch (rec.type) {
		case PERFDATA_SAMPLE: r = scan_sample(inj, part, &rec, &last); break;
		case PERFDATA_MMAP:
		case PERFDATA_MMAP2:
			r = scan_map(inj, part, &rec);
			last = NULL;
			break;
		case PERFDATA_COMM:
		case PERFDATA_FORK:
		case PERFDATA_EXIT:
			r = scan_task(inj, part, &rec);
			last = NULL;
			break;
		case PERFDATA_AUXTRACE: inj->everything = true; break;
		default: break;
		}
		if (r)
			return r;
	}
	if (r != PERFDATA_E_END)
		return r;
	perfdata_get_clock(part, &clock);
	if (!clock.has_time)
		inj->no_times = true;
	if (perfdata_has_hidden_addresses(part))
		inj->everything = true;
	return 0;
}
