/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Retired bodies by address and time, and the order in which they go.
 *
 * A retired body is a rectangle of addresses and time, and no two rectangles overlap. In
 * each 64 KiB segment that it touches it is filed under one address: the one with the most
 * trailing zero bits among its bytes there, its *middle* (the node of an interval tree
 * over the segment that is implicit in the bits). Two facts make that enough:
 *
 *  - all bodies with the same middle contain that address, so their lives are disjoint:
 *    one sorted array, and a binary search by time. A life of no length (its body was replaced at
 *    the moment of its load) stands behind the one that ended at that moment;
 *  - a body that contains address a has as its middle a with its low k bits cleared and
 *    bit k set, for some k, or the segment's start: 17 candidates to look under.
 *
 * So a question costs at most 17 binary searches; a mask of the levels in use skips most.
 *
 * Where no memory can be had for a body's past, the caller forgets the body: history
 * may shrink, what is alive may not suffer.
 */
#include "codemap/map.h"

#include <errno.h>
#include <string.h>

/* Bits of a middle's trailing zeros; the segment's start counts as 16. */
#define LEVELS (SEGMENT_SHIFT + 1)
/* A late event meets what was retired since its time; more than this is no late event. */
#define GATHER_MAX 512u
/* Lives that miss the range although their middle's line is right: then the end is taken. */
#define SCAN_MAX 64u

/* Lives with the same middle, by end. */
struct line {
	uint32_t n, size, head;
	uint32_t v[];
};

struct node {
	uint16_t middle;
	uint16_t first, last; /* no life of it has bytes beyond these */
	bool many;
	union {
		uint32_t one;
		struct line *line; /* many */
	};
};

struct past {
	uint32_t n, size;
	uint32_t levels;     /* middles with so many trailing zeros may be there */
	uint64_t newest_end; /* of this segment */
	struct node nodes[]; /* by middle */
};

#define QUEUE_BLOCK 1020u

struct queue_block {
	struct queue_block *prev, *next;
	uint32_t head, tail;
	uint32_t v[QUEUE_BLOCK];
};

/* -- The queue ---------------------------------------------------------------------------- */

static int queue_push(struct past_table *pt, uint32_t idx)
{
	struct queue *q = &pt->queue;
	struct queue_block *b = q->last;

	if (!b || b->tail == QUEUE_BLOCK) {
		b = mem_realloc(&pt->total, NULL, sizeof(*b));
		if (!b)
			return -ENOMEM;
		b->prev = q->last;
		b->next = NULL;
		b->head = b->tail = 0;
		if (q->last)
			q->last->next = b;
		else
			q->first = b;
		q->last = b;
	}
	b->v[b->tail++] = idx;
	q->count++;
	return 0;
}

static void queue_drop(struct past_table *pt, struct queue_block *b)
{
	struct queue *q = &pt->queue;

	if (b->prev)
		b->prev->next = b->next;
	else
		q->first = b->next;
	if (b->next)
		b->next->prev = b->prev;
	else
		q->last = b->prev;
	mem_free(&pt->total, b);
}

static void queue_pop_front(struct past_table *pt)
{
	struct queue_block *b = pt->queue.first;

	pt->queue.count--;
	if (++b->head == b->tail)
		queue_drop(pt, b);
}

uint32_t past_oldest(const struct codemap *map)
{
	const struct queue_block *b = map->past.queue.first;

	return b ? b->v[b->head] : 0;
}

void past_walk_back(const struct codemap *map, bool (*fn)(struct codemap *, uint32_t, void *),
		    void *arg)
{
	const struct queue_block *b;
	uint32_t i;

	for (b = map->past.queue.last; b; b = b->prev)
		for (i = b->tail; i > b->head; i--)
			if (!fn((struct codemap *)(uintptr_t)map, b->v[i - 1], arg))
				return;
}

/* -- Nodes -------------------------------------------------------------------------------- */

static uint32_t middle_of(uint32_t first, uint32_t last)
{
	uint32_t bit;

	if (!first)
		return 0;
	/* the highest bit in which first - 1 and last differ is set in last */
	bit = 31u - (uint32_t)__builtin_clz((first - 1) ^ last);
	return last >> bit << bit;
}

static uint32_t level_of(uint32_t middle)
{
	return middle ? (uint32_t)__builtin_ctz(middle) : SEGMENT_SHIFT;
}

/* Where something of that level lies if it contains the offset. */
static uint32_t candidate(uint32_t off, uint32_t level)
{
	if (level == SEGMENT_SHIFT)
		return 0;
	return (off >> (level + 1)) << (level + 1) | 1u << level;
}

static uint32_t node_position(const struct past *p, uint32_t middle)
{
	uint32_t low = 0, high = p->n;

	while (low < high) {
		uint32_t mid = low + (high - low) / 2;

		if (p->nodes[mid].middle < middle)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

static const struct node *node_find(const struct past *p, uint32_t middle)
{
	uint32_t at = node_position(p, middle);

	return at < p->n && p->nodes[at].middle == middle ? &p->nodes[at] : NULL;
}

static const uint32_t *node_bodies(const struct node *node)
{
	return node->many ? node->line->v + node->line->head : &node->one;
}

static uint32_t node_count(const struct node *node)
{
	return node->many ? node->line->n : 1;
}

/* How many of the node's lives end at or before time. */
static uint32_t node_ended(const struct codemap *map, const struct node *node, uint64_t time)
{
	const uint32_t *v = node_bodies(node);
	uint32_t low = 0, high = node_count(node);

	while (low < high) {
		uint32_t mid = low + (high - low) / 2;

		if (body_at(&map->bodies, v[mid])->unload <= time)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

static bool is_empty(const struct codemap *map, uint32_t idx, uint64_t end)
{
	return body_begin(&map->bodies, idx) >= end;
}

/* Where a life of that end belongs: behind all that ended before, and those of no length last. */
static uint32_t node_place(const struct codemap *map, const struct node *node, uint64_t end,
			   bool empty)
{
	const uint32_t *v = node_bodies(node);
	uint32_t low = 0, high = node_count(node);

	while (low < high) {
		uint32_t mid = low + (high - low) / 2;
		uint64_t other = body_at(&map->bodies, v[mid])->unload;

		if (other < end || (other == end && (empty || !is_empty(map, v[mid], end))))
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

/* Room for one more in the node's line, which is made if there is none yet. */
static int node_reserve(struct codemap *map, struct node *node)
{
	struct line *line = node->many ? node->line : NULL, *new;
	uint32_t n = node_count(node), size = n + n / 2 + 2;

	if (line && line->head + n < line->size)
		return 0;
	if (line && line->head > line->size / 2) {
		/* more than half is unused at the front */
		memmove(line->v, line->v + line->head, n * sizeof(*line->v));
		line->head = 0;
		return 0;
	}
	new = mem_realloc(&map->past.total, NULL, sizeof(*new) + size * sizeof(*new->v));
	if (!new)
		return -ENOMEM;
	*new = (struct line){ .n = n, .size = size };
	memcpy(new->v, node_bodies(node), n * sizeof(*new->v));
	mem_free(&map->past.total, line);
	node->line = new;
	node->many = true;
	return 0;
}

/* A node holds its only body itself, else in a line; so a removal never needs memory. */
static int node_insert(struct codemap *map, struct node *node, uint32_t idx)
{
	uint64_t end = body_at(&map->bodies, idx)->unload;
	uint32_t at = node_place(map, node, end, is_empty(map, idx, end)), *v;

	if (node_reserve(map, node) < 0)
		return -ENOMEM;
	v = node->line->v + node->line->head;
	memmove(v + at + 1, v + at, (node->line->n - at) * sizeof(*v));
	v[at] = idx;
	node->line->n++;
	return 0;
}

static uint32_t node_where(const struct codemap *map, const struct node *node, uint32_t idx)
{
	const uint32_t *v = node_bodies(node);
	uint32_t at = node_ended(map, node, body_at(&map->bodies, idx)->unload);

	/* lives of no length may share an end */
	while (v[--at] != idx)
		;
	return at;
}

static void node_remove(struct codemap *map, struct node *node, uint32_t idx)
{
	struct line *line = node->line;
	uint32_t at = node_where(map, node, idx), *v = line->v + line->head;

	if (!at)
		line->head++;
	else
		memmove(v + at, v + at + 1, (line->n - at - 1) * sizeof(*v));
	if (--line->n == 1) {
		uint32_t one = line->v[line->head];

		mem_free(&map->past.total, line);
		node->many = false;
		node->one = one;
	} else if (line->n < line->size / 4) {
		memmove(line->v, line->v + line->head, line->n * sizeof(*v));
		line->head = 0;
		line->size /= 2;
		line = mem_realloc(&map->past.total, line, sizeof(*line) + line->size * sizeof(*v));
		if (line)
			node->line = line;
	}
}

/* -- Pieces: what one body is in one segment ---------------------------------------------- */

struct piece {
	uint64_t key;
	uint32_t first, last;
};

static bool piece_first(struct piece *p, uint64_t start, uint64_t stop)
{
	uint64_t base = start & ~(uint64_t)(SEGMENT_BYTES - 1);

	p->key = start >> SEGMENT_SHIFT;
	p->first = (uint32_t)(start - base);
	p->last = (uint32_t)(MIN(stop - base, (uint64_t)SEGMENT_BYTES) - 1);
	return true;
}

static bool piece_next(struct piece *p, uint64_t stop)
{
	uint64_t base = ++p->key << SEGMENT_SHIFT;

	if (base >= stop)
		return false;
	p->first = 0;
	p->last = (uint32_t)(MIN(stop - base, (uint64_t)SEGMENT_BYTES) - 1);
	return true;
}

#define for_each_piece(p, start, stop) \
	for (bool more = piece_first(p, start, stop); more; more = piece_next(p, stop))

static int piece_add(struct codemap *map, const struct piece *piece, uint32_t idx)
{
	uint32_t middle = middle_of(piece->first, piece->last), at;
	struct segment *seg = index_segment_get(&map->live, piece->key);
	struct past *p;

	if (!seg)
		return -ENOMEM;
	p = seg->past;
	at = p ? node_position(p, middle) : 0;
	if (p && at < p->n && p->nodes[at].middle == middle) {
		struct node *node = &p->nodes[at];

		if (node_insert(map, node, idx) < 0)
			return -ENOMEM;
		node->first = MIN(node->first, (uint16_t)piece->first);
		node->last = MAX(node->last, (uint16_t)piece->last);
	} else {
		if (!p || p->n == p->size) {
			uint32_t size = p ? p->size + p->size / 4 + 2 : 2;
			bool made = !p;

			p = mem_realloc(&map->past.total, p, sizeof(*p) + size * sizeof(*p->nodes));
			if (!p) {
				index_segment_trim(&map->live, piece->key);
				return -ENOMEM;
			}
			if (made)
				*p = (struct past){ 0 };
			p->size = size;
			seg->past = p;
		}
		memmove(p->nodes + at + 1, p->nodes + at, (p->n - at) * sizeof(*p->nodes));
		p->nodes[at] = (struct node){
			.middle = (uint16_t)middle,
			.first = (uint16_t)piece->first,
			.last = (uint16_t)piece->last,
			.one = idx,
		};
		p->n++;
		p->levels |= 1u << level_of(middle);
	}
	p->newest_end = MAX(p->newest_end, body_at(&map->bodies, idx)->unload);
	map->live.entries++;
	return 0;
}

static void piece_remove(struct codemap *map, const struct piece *piece, uint32_t idx)
{
	struct segment *seg = index_segment(&map->live, piece->key);
	struct past *p = seg->past, *smaller;
	uint32_t at = node_position(p, middle_of(piece->first, piece->last));

	map->live.entries--;
	if (p->nodes[at].many) {
		node_remove(map, &p->nodes[at], idx);
		return;
	}
	p->n--;
	memmove(p->nodes + at, p->nodes + at + 1, (p->n - at) * sizeof(*p->nodes));
	if (!p->n) {
		mem_free(&map->past.total, p);
		seg->past = NULL;
		index_segment_trim(&map->live, piece->key);
	} else if (p->n < p->size / 4) {
		smaller = mem_realloc(&map->past.total, p,
				      sizeof(*p) + p->size / 2 * sizeof(*p->nodes));
		if (smaller) {
			smaller->size /= 2;
			seg->past = smaller;
		}
	}
}

static void pieces_remove(struct codemap *map, uint32_t idx, uint64_t end_key)
{
	const struct codemap_body *b = body_at(&map->bodies, idx);
	struct piece piece;

	for_each_piece(&piece, b->start, body_stop(b))
	{
		if (piece.key == end_key)
			return;
		piece_remove(map, &piece, idx);
	}
}

/* What the record of a body costs here beyond its own 64 bytes. */
#define PAST_PIECE_COST 24u

static size_t past_cost(const struct codemap *map, uint32_t idx)
{
	const struct codemap_body *b = body_at(&map->bodies, idx);

	return sizeof(*b) + (size_t)b->held * 16;
}

int past_add(struct codemap *map, uint32_t idx)
{
	struct codemap_body *b = body_at(&map->bodies, idx);
	uint64_t pieces = ((body_stop(b) - 1) >> SEGMENT_SHIFT) - (b->start >> SEGMENT_SHIFT) + 1;
	struct piece piece;
	size_t held;

	if (map->live.entries + pieces > map->live.max_entries)
		return CODEMAP_E_FULL;
	for_each_piece(&piece, b->start, body_stop(b))
	{
		if (piece_add(map, &piece, idx) < 0) {
			pieces_remove(map, idx, piece.key);
			return -ENOMEM;
		}
	}
	if (queue_push(&map->past, idx) < 0) {
		pieces_remove(map, idx, UINT64_MAX);
		return -ENOMEM;
	}
	held = (size_t)pieces * PAST_PIECE_COST + strings_sole_bytes(&map->names, b->ns) +
	       strings_sole_bytes(&map->names, b->name) + strings_sole_bytes(&map->names, b->sig);
	b->held = (uint32_t)MIN(held / 16, (size_t)0x3fff);
	map->past.bytes += past_cost(map, idx);
	map->past.newest_end = MAX(map->past.newest_end, b->unload);
	map->stats.retired++;
	return 0;
}

static void past_left(struct codemap *map, uint32_t idx)
{
	map->past.bytes -= past_cost(map, idx);
	body_at(&map->bodies, idx)->held = 0;
	map->stats.retired--;
}

uint32_t past_take_oldest(struct codemap *map)
{
	uint32_t idx = past_oldest(map);

	if (!idx)
		return 0;
	queue_pop_front(&map->past);
	pieces_remove(map, idx, UINT64_MAX);
	past_left(map, idx);
	return idx;
}

/*
 * Within its line a life keeps its neighbours in the end, but while one call puts
 * things right two may cross: then it takes its new place among the others.
 */
void past_set_end(struct codemap *map, uint32_t idx, uint64_t time)
{
	struct codemap_body *b = body_at(&map->bodies, idx);
	bool empty = is_empty(map, idx, time);
	struct piece piece;
	uint64_t old = b->unload;

	for_each_piece(&piece, b->start, body_stop(b))
	{
		struct past *p = index_segment(&map->live, piece.key)->past;
		struct node *node = &p->nodes[node_position(p, middle_of(piece.first, piece.last))];
		uint32_t from, to, *v;

		p->newest_end = MAX(p->newest_end, time);
		if (!node->many)
			continue;
		v = node->line->v + node->line->head;
		b->unload = old;
		from = node_where(map, node, idx);
		node->line->n--;
		memmove(v + from, v + from + 1, (node->line->n - from) * sizeof(*v));
		to = node_place(map, node, time, empty);
		memmove(v + to + 1, v + to, (node->line->n - to) * sizeof(*v));
		node->line->n++;
		v[to] = idx;
	}
	b->unload = time;
	if (time != old)
		change_note(map, idx, time < old ? CODEMAP_CHANGE_ENDED : CODEMAP_CHANGE_ALTERED);
	map->past.newest_end = MAX(map->past.newest_end, time);
}

/* -- Questions ---------------------------------------------------------------------------- */

static bool covers(const struct codemap_body *b, uint64_t addr)
{
	return addr >= b->start && addr - b->start < b->size;
}

static bool touches(const struct codemap_body *b, uint64_t start, uint64_t stop)
{
	return b->start < stop && start < body_stop(b);
}

static const struct past *past_of(const struct codemap *map, uint64_t key)
{
	const struct segment *seg = index_segment(&map->live, key);

	return seg ? seg->past : NULL;
}

/*
 * Does one of the lives from v[i] on, in steps of d, that end when that one does cover the address?
 * They are of no length but one, and in no order.
 */
static bool any_covers(const struct codemap *map, const uint32_t *v, uint32_t i, uint32_t n, int d,
		       uint64_t addr)
{
	uint64_t end = body_at(&map->bodies, v[i])->unload;

	for (n = MIN(n, SCAN_MAX); n; n--, i += (uint32_t)d) {
		const struct codemap_body *b = body_at(&map->bodies, v[i]);

		if (b->unload != end)
			return false;
		if (covers(b, addr))
			return true;
	}
	return false;
}

uint32_t past_find(const struct codemap *map, const struct past *p, uint64_t addr, uint64_t time,
		   struct past_hint *hint)
{
	uint32_t off = (uint32_t)addr & (SEGMENT_BYTES - 1), level;

	for (level = 0; level < LEVELS; level++) {
		const struct node *node;
		const uint32_t *v;
		uint32_t at, n;

		if (!(p->levels & 1u << level))
			continue;
		node = node_find(p, candidate(off, level));
		if (!node || off < node->first || off > node->last)
			continue;
		v = node_bodies(node);
		n = node_count(node);
		at = node_ended(map, node, time);
		if (at < n && covers(body_at(&map->bodies, v[at]), addr) &&
		    body_begin(&map->bodies, v[at]) <= time)
			return v[at];
		hint->after |= at < n && any_covers(map, v, at, n - at, 1, addr);
		hint->before |= at && any_covers(map, v, at - 1, at, -1, addr);
	}
	return 0;
}

uint32_t past_last_at(const struct codemap *map, uint64_t start, uint64_t time)
{
	const struct past *p = past_of(map, start >> SEGMENT_SHIFT);
	uint32_t off = (uint32_t)start & (SEGMENT_BYTES - 1), level, best = 0;

	for (level = 0; p && level < LEVELS; level++) {
		const struct node *node;
		uint32_t at;

		if (!(p->levels & 1u << level))
			continue;
		node = node_find(p, candidate(off, level));
		at = node ? node_ended(map, node, time) : 0;
		if (at) {
			uint32_t idx = node_bodies(node)[at - 1];
			const struct codemap_body *b = body_at(&map->bodies, idx);

			if (b->start == start &&
			    (!best || b->unload > body_at(&map->bodies, best)->unload))
				best = idx;
		}
	}
	return best;
}

/* Calls fn for every node with lives that may touch the piece, until one returns not 0. */
typedef int node_fn(const struct codemap *map, const struct node *node, void *arg);

static int nodes_touching(const struct codemap *map, const struct past *p,
			  const struct piece *piece, node_fn *fn, void *arg)
{
	const uint32_t ends[] = { piece->first, piece->last };
	uint32_t at, level, i;
	int r;

	for (at = node_position(p, piece->first); at < p->n && p->nodes[at].middle <= piece->last;
	     at++) {
		r = fn(map, &p->nodes[at], arg);
		if (r)
			return r;
	}
	/* what has its middle outside contains the first or the last byte, or both */
	for (level = 0; level < LEVELS; level++) {
		if (!(p->levels & 1u << level))
			continue;
		for (i = 0; i < ARRAY_SIZE(ends); i++) {
			uint32_t middle = candidate(ends[i], level);
			const struct node *node;

			if ((middle >= piece->first && middle <= piece->last) ||
			    (i && middle == candidate(ends[0], level)))
				continue;
			node = node_find(p, middle);
			if (!node || node->first > piece->last || node->last < piece->first)
				continue;
			r = fn(map, node, arg);
			if (r)
				return r;
		}
	}
	return 0;
}

struct gather {
	uint64_t start, stop, time, base;
	bool later_piece;
	struct list *out;
};

static int gather_node(const struct codemap *map, const struct node *node, void *arg)
{
	struct gather *g = arg;
	const uint32_t *v = node_bodies(node);
	uint32_t i;
	int r;

	for (i = node_count(node); i; i--) {
		const struct codemap_body *b = body_at(&map->bodies, v[i - 1]);

		if (b->unload <= g->time)
			break;
		if (!touches(b, g->start, g->stop) || (g->later_piece && b->start < g->base))
			continue;
		if (g->out->n >= GATHER_MAX)
			return CODEMAP_E_STALE;
		r = list_add(g->out, v[i - 1]);
		if (r < 0)
			return r;
	}
	return 0;
}

int past_gather(const struct codemap *map, uint64_t start, uint64_t stop, uint64_t time,
		struct list *out)
{
	struct gather g = { .start = start, .stop = stop, .time = time, .out = out };
	struct piece piece;
	int r;

	for_each_piece(&piece, start, stop)
	{
		const struct past *p = past_of(map, piece.key);

		g.base = piece.key << SEGMENT_SHIFT;
		g.later_piece = piece.key != start >> SEGMENT_SHIFT;
		if (!p || time >= p->newest_end)
			continue;
		r = nodes_touching(map, p, &piece, gather_node, &g);
		if (r)
			return r;
	}
	return 0;
}

struct meet {
	uint64_t start, stop, from, to;
};

static int meet_node(const struct codemap *map, const struct node *node, void *arg)
{
	const struct meet *m = arg;
	const uint32_t *v = node_bodies(node);
	uint32_t n = node_count(node), i;

	for (i = node_ended(map, node, m->from); i < n && body_begin(&map->bodies, v[i]) < m->to;
	     i++)
		if (touches(body_at(&map->bodies, v[i]), m->start, m->stop))
			return 1;
	return 0;
}

bool past_meets(const struct codemap *map, uint64_t start, uint64_t stop, uint64_t from,
		uint64_t to)
{
	struct meet m = { start, stop, from, to };
	struct piece piece;

	for_each_piece(&piece, start, stop)
	{
		const struct past *p = past_of(map, piece.key);

		if (p && from < p->newest_end && nodes_touching(map, p, &piece, meet_node, &m))
			return true;
	}
	return false;
}

struct last_end {
	uint64_t start, stop, time, end;
};

static int last_end_node(const struct codemap *map, const struct node *node, void *arg)
{
	struct last_end *l = arg;
	const uint32_t *v = node_bodies(node);
	uint32_t i, n = 0;

	for (i = node_ended(map, node, l->time); i; i--) {
		const struct codemap_body *b = body_at(&map->bodies, v[i - 1]);

		if (b->unload <= l->end)
			break;
		if (touches(b, l->start, l->stop) || ++n > SCAN_MAX) {
			l->end = b->unload;
			break;
		}
	}
	return 0;
}

uint64_t past_last_end(const struct codemap *map, uint64_t start, uint64_t stop, uint64_t time)
{
	struct last_end l = { .start = start, .stop = stop, .time = time };
	struct piece piece;

	for_each_piece(&piece, start, stop)
	{
		const struct past *p = past_of(map, piece.key);

		if (p)
			nodes_touching(map, p, &piece, last_end_node, &l);
	}
	return l.end;
}

void past_free_all(struct codemap *map)
{
	while (past_take_oldest(map))
		;
}
