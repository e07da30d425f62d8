/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * symbols: the interface org.clrsym.Symbols, its words, and the values that have a form in it.
 *
 * The text of the interface (query_description()) is the reference for clients; what
 * stands here is the C side of the same. Forms that every method shares:
 *
 *  - an address is a JSON integer, or a string of "0x" and 1 to 16 hex digits (needed from 2^63
 * on);
 *  - a time is CLOCK_MONOTONIC ns, as an integer or a string of decimal digits; 0 or absent: the
 *    last known state;
 *  - a process is pid (as the caller sees it) and optionally start (field 22 of /proc/PID/stat);
 *  - a member that is null is the same as one that is absent;
 *  - a member that is not known is refused: a client that misspells one is told.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <jansson.h>

#include "base/buf.h"
#include "base/util.h"

#define QUERY_INTERFACE "org.clrsym.Symbols"
/* A second name of the same, for parsers that take no capitals. */
#define QUERY_INTERFACE_LOWER "org.clrsym.symbols"
#define QUERY_SERVICE         "org.varlink.service"

#define QUERY_DEFAULT_SOCKET  "/run/clrsym/query.sock"

/* Errors of the interface; parameters in brackets. */
#define QUERY_ERROR_NO_PROCESS    QUERY_INTERFACE ".NoSuchProcess"    /* pid */
#define QUERY_ERROR_NOT_ATTACHED  QUERY_INTERFACE ".NotAttached"      /* pid */
#define QUERY_ERROR_NOT_YOURS     QUERY_INTERFACE ".NotYours"         /* pid: Detach of another's */
#define QUERY_ERROR_CANNOT_ATTACH QUERY_INTERFACE ".CannotAttach"     /* pid, reason */
#define QUERY_ERROR_FOREIGN_PID   QUERY_INTERFACE ".ForeignNamespace" /* pid */
#define QUERY_ERROR_BUSY          QUERY_INTERFACE ".Busy"             /* reason: a cap was met */
#define QUERY_ERROR_FAILED        QUERY_INTERFACE ".Failed"           /* reason: ours */
#define QUERY_ERROR_DENIED        QUERY_SERVICE ".PermissionDenied"
#define QUERY_ERROR_PARAMETER     QUERY_SERVICE ".InvalidParameter"  /* parameter */
#define QUERY_ERROR_NO_METHOD     QUERY_SERVICE ".MethodNotFound"    /* method */
#define QUERY_ERROR_NO_INTERFACE  QUERY_SERVICE ".InterfaceNotFound" /* interface */
#define QUERY_ERROR_MORE          QUERY_SERVICE ".ExpectedMore"

/* Why an address has no name. The words are those of codemap_miss_text() where it has one. */
#define QUERY_REASON_UNMAPPED     "unmapped"
#define QUERY_REASON_STUB         "stub"
#define QUERY_REASON_NATIVE       "native"
#define QUERY_REASON_NOT_ATTACHED "not attached"
#define QUERY_REASON_DENIED       "denied"

enum query_error {
	QUERY_E_PARAMETER = 1, /* one is missing, of the wrong type, or out of range */
	QUERY_E_REMOTE,        /* the server answered with an error */
};

/* An interface that a service has, in varlink's language (static); NULL: it has no such. */
const char *query_description(const char *interface);

/* One method of code, with its body: an element of methods[]. Texts: UTF-8, not NUL-terminated. */
struct query_method {
	uint64_t method_id, start;
	uint64_t load, unload; /* ns; load 0: since ever; unload UINT64_MAX: alive */
	uint32_t size, version;
	const char *tier;                                /* NUL-terminated */
	const char *ns, *name, *sig, *function, *module; /* function: the full spelled name */
	size_t ns_len, name_len, sig_len, function_len, module_len; /* module NULL: not known */
};

/*
 * The members of a method, without the braces:
 *   "method_id":"0x..","ns":..,"name":..,"sig":..,"module":..|null,"tier":..,"start":"0x..",
 *   "size":n,"version":n,"load":n,"unload":n|null,"function":..
 * The first eight are in the order of `clrsym resolve --json`.
 */
void query_put_method(struct buf *out, const struct query_method *m);

/* -- Parameters ------------------------------------------------------------------------- */

/*
 * parameters may be NULL: none. All return 0 or QUERY_E_PARAMETER, with the name of the bad one:
 * static, or borrowed from parameters where it is unknown.
 */

static inline int query_bad(const char *name, const char **badp)
{
	*badp = name;
	return QUERY_E_PARAMETER;
}

/* Are all members among names (up to NULL)? */
int query_parse_members(json_t *parameters, const char *const *names, const char **badp);
/* Which process: pid, and start (0 if absent). */
int query_parse_process(json_t *parameters, pid_t *pidp, uint64_t *startp, const char **badp);
/* An integer up to max; *vp stays as it is when the member is absent. */
int query_parse_count(json_t *parameters, const char *name, uint64_t max, uint64_t *vp,
		      const char **badp);
/* True or false; *flagp stays as it is when the member is absent. */
int query_parse_flag(json_t *parameters, const char *name, bool *flagp, const char **badp);

/* One value of the forms above. False: it is none. */
bool query_parse_address(json_t *value, uint64_t *addrp);
bool query_parse_time(json_t *value, uint64_t *timep);

/* -- Resolve ---------------------------------------------------------------------------- */

struct query_address {
	uint64_t addr;
	uint64_t time; /* 0: last known state */
	bool caller;   /* a return address: looked up one byte before */
};

struct query_resolve {
	pid_t pid;
	uint64_t start;              /* 0: any */
	struct query_address *items; /* of stacks: all, in order */
	size_t n;
	uint32_t wait_ms;
};

/*
 * Parameters of Resolve: pid, start, addresses or stacks, time or times (one an address, or one a
 * stack), caller, wait_ms. Returns 0, -ENOMEM (*req is empty in both cases of failure) or
 * QUERY_E_PARAMETER.
 */
int query_resolve_parse(struct query_resolve *req, json_t *parameters, const char **badp);
void query_resolve_deinit(struct query_resolve *req);

/*
 * The reply while it grows: methods[] and the parallel arrays, as text, each element with a comma
 * behind it. A failure is remembered by the buffer, and tested once, by query_answers_reply().
 */
struct query_answers {
	struct buf methods, method, offset, il_offset, reason;
	uint32_t n_methods;
	size_t n;
};

/* cap: of each buffer. methods[] alone can grow large, as the number of addresses has its cap. */
void query_answers_init(struct query_answers *a, size_t cap);
void query_answers_deinit(struct query_answers *a);
void query_answers_clear(struct query_answers *a);
/* Adds to methods[]; returns its index. */
uint32_t query_answers_method(struct query_answers *a, const struct query_method *m);
/* The answer of the next address. il: IL offset, or a negative number: none. */
void query_answers_hit(struct query_answers *a, uint32_t method, uint32_t offset, int64_t il);
/* reason: plain ASCII without quotes or backslashes. */
void query_answers_miss(struct query_answers *a, const char *reason);
/*
 * Appends the whole reply message. Returns 0, -ENOMEM or -ENOSPC, of any of the buffers; then
 * nothing of it is there.
 */
int query_answers_reply(const struct query_answers *a, uint64_t known_until, bool final,
			struct buf *out);
