/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is loaded, and what was: see loader.h.
 *
 * An id is an address and comes again, so an entry is one *life* of an id: from its load to its
 * unload. The lives of one id stand in their hash chain, newest first, and never overlap. Events
 * come in any order, and each is a word about one moment:
 *
 *   a load at t     a life begins at t; one that was thought to go on beyond t ended there (its
 *                   unload was lost, or is still to come and will say when exactly)
 *   a record at t   there is a life at t
 *   an unload at t  the life that there was just before t ends at t; what was thought to be it and
 *                   is told of later was another one
 *
 * A life that begins with a record is open towards the past: an earlier word about the same life
 * moves its begin. Overlapping sessions tell the same load or unload twice, microseconds apart;
 * within SAME_NS the same thing is the same event.
 *
 * Bounds: of all lives that have ended the newest CAP_LOADER_GONE are kept, of one id no more than
 * ID_LIVES, so that no order of events makes a chain long; and memory is given first to what
 * is loaded.
 */
#include "target/loader.h"

#include <errno.h>
#include <string.h>

#include "base/caps.h"
#include "base/hash.h"

#define ID_LIVES 64u
/* A thread may be preempted between two sessions; no id is loaded twice that fast. */
#define SAME_NS MS_NS(5)
/* What malloc itself takes for a piece, about. */
#define MALLOC_BYTES 16u

struct entry {
	struct loader_item item;
	struct entry *next;          /* in the hash chain */
	struct entry *newer, *older; /* among those that have ended, in the order of that */
	bool gone;
	bool implied;  /* its end is the begin of the next one, not an unload */
	uint64_t seen; /* the last record of it, 0 if none */
	size_t index;  /* in all */
	size_t bytes;
	char texts[];
};

struct loader {
	uint64_t seed;
	struct entry **heads;
	size_t n_heads; /* a power of two */
	struct entry **all;
	size_t n, size;
	bool sorted;
	struct entry *newest, *oldest; /* that have ended */
	size_t n_gone;
	size_t bytes;
	uint64_t refused;
};

const char *loader_kind_text(enum loader_kind kind)
{
	static const char *const words[] = {
		[LOADER_DOMAIN] = "domain",
		[LOADER_ASSEMBLY] = "assembly",
		[LOADER_MODULE] = "module",
	};

	return words[kind];
}

int loader_new(struct loader **outp)
{
	_cleanup_(loader_freep) struct loader *l = calloc(1, sizeof(*l));

	if (!l)
		return -ENOMEM;
	l->seed = hash_seed();
	l->n_heads = 64;
	l->heads = calloc(l->n_heads, sizeof(*l->heads));
	if (!l->heads)
		return -ENOMEM;
	l->bytes = sizeof(*l) + l->n_heads * sizeof(*l->heads);
	*outp = TAKE_PTR(l);
	return 0;
}

void loader_free(struct loader *l)
{
	size_t i;

	if (!l)
		return;
	for (i = 0; i < l->n; i++)
		free(l->all[i]);
	free(l->all);
	free(l->heads);
	free(l);
}

/* -- what an event says ---------------------------------------------------------------- */

/* An event's content: an item with borrowed texts, and their lengths. */
struct word {
	struct loader_item item;
	struct clr_string name, native_path, pdb_path;
	uint64_t time;
};

static void word_of_module(struct word *word, const struct clr_module *m)
{
	static const struct clr_guid none;

	word->item.kind = LOADER_MODULE;
	word->item.id = m->module_id;
	word->item.parent = m->assembly_id;
	word->item.flags = m->flags;
	word->item.pdb_age = m->pdb_age;
	word->item.pdb_guid = m->pdb_guid;
	word->item.has_pdb = memcmp(&m->pdb_guid, &none, sizeof(none)) != 0;
	word->name = m->il_path;
	word->native_path = m->native_path;
	word->pdb_path = m->pdb_path;
}

static bool word_of(struct word *word, const struct clr_event *ev, uint64_t time)
{
	static const struct clr_string empty = { .s = "" };

	*word = (struct word){ .time = time, .native_path = empty, .pdb_path = empty };
	switch (ev->kind) {
	case CLR_MODULE: word_of_module(word, &ev->module); return true;
	case CLR_ASSEMBLY:
		word->item.kind = LOADER_ASSEMBLY;
		word->item.id = ev->assembly.assembly_id;
		word->item.parent = ev->assembly.app_domain_id;
		word->item.flags = ev->assembly.flags;
		word->name = ev->assembly.name;
		return true;
	case CLR_APP_DOMAIN:
		word->item.kind = LOADER_DOMAIN;
		word->item.id = ev->app_domain.app_domain_id;
		word->item.flags = ev->app_domain.flags;
		word->name = ev->app_domain.name;
		return true;
	default: return false;
	}
}

static bool same_content(const struct entry *e, const struct word *word)
{
	return e->item.parent == word->item.parent && strcmp(e->item.name, word->name.s) == 0;
}

static bool is_near(uint64_t a, uint64_t b)
{
	return (a > b ? a - b : b - a) < SAME_NS;
}

/* -- the entries ----------------------------------------------------------------------- */

static struct entry **chain_of(struct loader *l, enum loader_kind kind, uint64_t id)
{
	return &l->heads[hash_u64(l->seed + kind, id) & (l->n_heads - 1)];
}

static bool is_of(const struct entry *e, const struct loader_item *item)
{
	return e->item.id == item->id && e->item.kind == item->kind;
}

static void list_remove(struct loader *l, struct entry *e)
{
	*(e->newer ? &e->newer->older : &l->newest) = e->older;
	*(e->older ? &e->older->newer : &l->oldest) = e->newer;
	l->n_gone--;
}

static void entry_remove(struct loader *l, struct entry *e)
{
	struct entry **link = chain_of(l, e->item.kind, e->item.id);

	while (*link != e)
		link = &(*link)->next;
	*link = e->next;
	if (e->gone)
		list_remove(l, e);
	l->all[e->index] = l->all[--l->n];
	l->all[e->index]->index = e->index;
	l->sorted = false;
	l->bytes -= e->bytes;
	free(e);
}

static void entry_ended(struct loader *l, struct entry *e)
{
	if (e->gone)
		return;
	e->gone = true;
	e->newer = NULL;
	e->older = l->newest;
	*(l->newest ? &l->newest->newer : &l->oldest) = e;
	l->newest = e;
	l->n_gone++;
}

/* Those that ended first go first. False: they are not enough. */
static bool make_room(struct loader *l, size_t bytes)
{
	while (l->oldest && (l->n >= CAP_LOADER_ITEMS || l->bytes + bytes > CAP_LOADER_BYTES))
		entry_remove(l, l->oldest);
	return l->n < CAP_LOADER_ITEMS && l->bytes + bytes <= CAP_LOADER_BYTES;
}

static int grow_all(struct loader *l)
{
	size_t size = l->size ? 2 * l->size : 64;
	struct entry **all;

	if (l->n < l->size)
		return 0;
	all = realloc(l->all, size * sizeof(struct entry *));
	if (!all)
		return -ENOMEM;
	l->bytes += (size - l->size) * sizeof(struct entry *);
	l->all = all;
	l->size = size;
	return 0;
}

/* The order in a chain is the order of lives, newest first: entries are moved from its end. */
static int grow_heads(struct loader *l)
{
	size_t n_heads = 2 * l->n_heads, i;
	struct entry **heads, **old = l->heads;

	if (l->n < l->n_heads)
		return 0;
	heads = calloc(n_heads, sizeof(struct entry *));
	if (!heads)
		return -ENOMEM;
	l->heads = heads;
	l->n_heads = n_heads;
	for (i = 0; i < n_heads / 2; i++) {
		struct entry *e = old[i], *reversed = NULL, *next;

		for (; e; e = next) {
			next = e->next;
			e->next = reversed;
			reversed = e;
		}
		for (e = reversed; e; e = next) {
			struct entry **head = chain_of(l, e->item.kind, e->item.id);

			next = e->next;
			e->next = *head;
			*head = e;
		}
	}
	free(old);
	l->bytes += n_heads / 2 * sizeof(struct entry *);
	return 0;
}

static const char *put_text(char **at, const struct clr_string *text)
{
	const char *s = *at;

	memcpy(*at, text->s, text->len);
	(*at)[text->len] = '\0';
	*at += text->len + 1;
	return s;
}

static struct entry *entry_of(const struct word *word)
{
	size_t bytes = sizeof(struct entry) + word->name.len + word->native_path.len +
		       word->pdb_path.len + 3;
	struct entry *e = calloc(1, bytes);
	char *at;

	if (!e)
		return NULL;
	e->item = word->item;
	e->bytes = bytes + MALLOC_BYTES;
	at = e->texts;
	e->item.name = put_text(&at, &word->name);
	e->item.native_path = put_text(&at, &word->native_path);
	e->item.pdb_path = put_text(&at, &word->pdb_path);
	return e;
}

/* Before the lives of this id that began earlier, and of these no more than so many. */
static void chain_insert(struct loader *l, struct entry *e)
{
	struct entry **link = chain_of(l, e->item.kind, e->item.id), *other, *last = NULL;
	unsigned int n = 0;

	while (*link && (!is_of(*link, &e->item) || (*link)->item.load > e->item.load))
		link = &(*link)->next;
	e->next = *link;
	*link = e;
	for (other = *chain_of(l, e->item.kind, e->item.id); other; other = other->next) {
		if (!is_of(other, &e->item))
			continue;
		n++;
		if (other->gone)
			last = other;
	}
	if (n > ID_LIVES && last)
		entry_remove(l, last);
}

struct life {
	uint64_t load, unload, seen;
	bool open_past, implied;
};

/* Another life of what the word is about. Returns 0, -ENOMEM or FULL. May free any that ended. */
static int add_life(struct loader *l, const struct word *word, const struct life *life)
{
	struct entry *e;
	int r;

	r = grow_all(l);
	if (r == 0)
		r = grow_heads(l);
	if (r < 0)
		return r;
	e = entry_of(word);
	if (!e)
		return -ENOMEM;
	if (!make_room(l, e->bytes)) {
		free(e);
		l->refused++;
		return LOADER_E_FULL;
	}
	e->item.load = life->load;
	e->item.unload = life->unload;
	e->item.open_past = life->open_past;
	e->implied = life->implied;
	e->seen = life->seen;
	e->index = l->n;
	l->all[l->n++] = e;
	l->sorted = false;
	l->bytes += e->bytes;
	if (life->unload != UINT64_MAX)
		entry_ended(l, e);
	chain_insert(l, e);
	if (l->n_gone > CAP_LOADER_GONE)
		entry_remove(l, l->oldest);
	return 0;
}

/* -- the words ------------------------------------------------------------------------- */

/* The last life that begins no later than a time, and the first that begins after it. */
static void find_around(struct loader *l, const struct word *word, struct entry **beforep,
			struct entry **afterp)
{
	struct entry *e;

	*beforep = *afterp = NULL;
	for (e = *chain_of(l, word->item.kind, word->item.id); e; e = e->next) {
		if (!is_of(e, &word->item))
			continue;
		if (e->item.load <= word->time) {
			*beforep = e;
			return;
		}
		*afterp = e;
	}
}

bool loader_is_permanent(struct loader *l, uint64_t module_id, uint64_t time)
{
	struct word word = { .item = { .kind = LOADER_MODULE, .id = module_id }, .time = time };
	struct entry *module, *assembly, *after;

	find_around(l, &word, &module, &after);
	if (!module)
		return false;
	word.item.kind = LOADER_ASSEMBLY;
	word.item.id = module->item.parent;
	find_around(l, &word, &assembly, &after);
	return assembly && !(assembly->item.flags & CLR_ASSEMBLY_COLLECTIBLE);
}

/* May free any other that ended. */
static void set_end(struct loader *l, struct entry *e, uint64_t time, bool implied)
{
	e->item.unload = time;
	e->implied = implied;
	entry_ended(l, e);
	if (l->n_gone > CAP_LOADER_GONE)
		entry_remove(l, l->oldest);
}

/* Does the life after a word's time begin with that word? */
static bool is_begin_of(const struct entry *after, const struct word *word)
{
	return after && (after->item.open_past ||
			 (is_near(after->item.load, word->time) && same_content(after, word)));
}

/* The last record was of a later life. */
static uint64_t take_seen(struct entry *e)
{
	uint64_t seen = e->seen;

	e->seen = 0;
	return seen;
}

static int on_load(struct loader *l, const struct word *word)
{
	struct life life = { .load = word->time, .unload = UINT64_MAX };
	struct entry *before, *after;

	find_around(l, word, &before, &after);
	if (before && word->time < before->item.unload) {
		if (is_near(before->item.load, word->time) && same_content(before, word)) {
			before->item.open_past = false;
			return 0;
		}
		/* what follows from here on is another life, up to the same end */
		life.unload = before->item.unload;
		life.implied = before->implied;
		if (before->seen >= word->time)
			life.seen = take_seen(before);
		set_end(l, before, word->time, true);
	} else if (is_begin_of(after, word)) {
		after->item.load = word->time;
		after->item.open_past = false;
		l->sorted = false;
		return 0;
	} else if (after) {
		life.unload = after->item.load;
		life.implied = true;
	}
	return add_life(l, word, &life);
}

static int on_record(struct loader *l, const struct word *word)
{
	struct life life = {
		.load = word->time,
		.unload = UINT64_MAX,
		.seen = word->time,
		.open_past = true,
	};
	struct entry *before, *after;

	find_around(l, word, &before, &after);
	if (before && word->time < before->item.unload) {
		before->seen = MAX(before->seen, word->time);
		return 0;
	}
	if (is_begin_of(after, word)) {
		after->item.load = word->time;
		after->seen = MAX(after->seen, word->time);
		l->sorted = false;
		return 0;
	}
	if (after) {
		life.unload = after->item.load;
		life.implied = true;
	}
	return add_life(l, word, &life);
}

static bool ended_near(const struct entry *e, const struct word *word)
{
	return is_near(e->item.unload, word->time) && same_content(e, word);
}

static int on_unload(struct loader *l, const struct word *word)
{
	/* one that was loaded before anything is known, or whose load is still to come */
	struct life life = { .load = word->time, .unload = word->time, .open_past = true };
	struct entry *before, *after;
	bool told;

	find_around(l, word, &before, &after);
	if (!before || word->time > before->item.unload) {
		if (before && ended_near(before, word))
			return 0;
		if (!after || !after->item.open_past || !ended_near(after, word))
			return add_life(l, word, &life);
		after->item.load = after->item.unload = word->time;
		l->sorted = false;
		return 0;
	}
	life.unload = life.load = before->item.unload;
	life.implied = before->implied;
	told = !before->implied && life.unload != UINT64_MAX && !is_near(life.unload, word->time);
	if (before->seen > word->time)
		life.seen = life.load = take_seen(before);
	set_end(l, before, word->time, false);
	return told || life.seen ? add_life(l, word, &life) : 0;
}

int loader_event(struct loader *l, const struct clr_event *ev, uint64_t time)
{
	struct word word;

	if (!word_of(&word, ev, time))
		return 0;
	switch (ev->phase) {
	case CLR_PHASE_LOAD: return on_load(l, &word);
	case CLR_PHASE_UNLOAD: return on_unload(l, &word);
	default: return on_record(l, &word);
	}
}

/* -- the list -------------------------------------------------------------------------- */

static int compare_entries(const void *a, const void *b)
{
	const struct loader_item *x = &(*(struct entry *const *)a)->item;
	const struct loader_item *y = &(*(struct entry *const *)b)->item;

	if (x->kind != y->kind)
		return x->kind < y->kind ? -1 : 1;
	if (x->load != y->load)
		return x->load < y->load ? -1 : 1;
	return x->id < y->id ? -1 : x->id > y->id;
}

const struct loader_item *loader_item(struct loader *l, size_t i)
{
	size_t k;

	if (i >= l->n)
		return NULL;
	if (!l->sorted) {
		qsort(l->all, l->n, sizeof(*l->all), compare_entries);
		for (k = 0; k < l->n; k++)
			l->all[k]->index = k;
		l->sorted = true;
	}
	return &l->all[i]->item;
}

size_t loader_memory(const struct loader *l)
{
	return l->bytes;
}

uint64_t loader_refused(const struct loader *l)
{
	return l->refused;
}
