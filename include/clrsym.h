/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLRSYM_H
#define CLRSYM_H

/*
 * libclrsym: names for addresses in the code of .NET processes, at a time.
 *
 * The daemon clrsymd attaches to .NET processes and knows which method lay where, and when: code
 * is compiled, recompiled, thrown away, and its addresses are used again. This library asks it.
 *
 *     handle       a connection to the daemon                       clrsym_open()
 *     process      one process: its code in memory shared with      clrsym_process_open()
 *                  the daemon
 *     lookup       an address at a time, from that memory alone:    clrsym_lookup()
 *                  some tens of ns, no system call
 *     resolve      many addresses; what the memory does not have    clrsym_resolve()
 *                  is asked of the daemon, which also knows why an
 *                  address has no name
 *     monitor      changes to the code as they come                 clrsym_monitor_open()
 *
 * Units and values
 *
 *     Times are nanoseconds of CLOCK_MONOTONIC, what bpf_ktime_get_ns() and `perf record -k mono`
 *     give. 0 asks for the last known state. Addresses are those of the process. A start time is
 *     field 22 of /proc/PID/stat; with it a process id that was reused is never mistaken; 0: any.
 *     A process id is as the caller sees it. Texts are UTF-8 without control characters.
 *
 * How far an answer can be trusted
 *
 *     The runtime tells of its code up to some 100 ms late. An answer for a time that the daemon
 *     knows all about is final: it will never change. Any other is marked as not final; ask
 *     again later, or let clrsym_resolve() wait. When the daemon has died, the memory of a process
 *     goes on answering, and for times after the death nothing it says is final.
 *
 * Errors
 *
 *     Functions return 0 or a negative errno. The text for it: clrsym_strerror(). What the daemon
 *     said about it: clrsym_error_detail(). Nothing is ever printed, no signal raised (SIGPIPE
 *     neither), no thread started, no exit called, and no handler or locale changed. Every call:
 *
 *       -EINVAL        an argument (or a size `sz`) cannot be
 *       -E2BIG         an option is set that this version of the library does not know
 *       -ENOMEM        no memory
 *       -ECHILD        the handle is of the process that this one was forked from, see below
 *       -ECONNREFUSED  no daemon answers at the socket
 *       -ECONNRESET    the daemon went away during the call, and there is no other yet
 *       -ETIMEDOUT     it did not answer in time
 *       -EPROTO        it answered what cannot be
 *       -EACCES        it does not let us: connect, or see that process
 *       -ESRCH         it knows no such process, or the process has another start time
 *       -ENOTCONN      it is not attached to that process (see CLRSYM_PROCESS_ATTACH)
 *       -ENOTSUP       it cannot attach to that process; the detail says why
 *       -EXDEV         the process is in a pid namespace whose ids it cannot translate
 *       -EBUSY         a limit on its load was met: later
 *       -ENOSYS        it is too old for that call
 *       -EREMOTEIO     it failed otherwise; see the detail
 *
 * Threads and fork
 *
 *     Any number of threads may use one handle and one process. Lookups take no lock, never wait,
 *     and may be made in signal handlers. Calls that ask the daemon take turns on a handle; for
 *     more at a time, use more handles. A monitor belongs to one thread at a time. Nothing may be
 *     closed while it is in use; processes and monitors are closed before their handle.
 *
 *     After fork() the child may go on to look up in the processes it got, and close them and the
 *     handle; any other call on them returns -ECHILD. It opens a handle of its own. All fds
 *     are close-on-exec. Calls are no points of thread cancellation; do not cancel in them.
 *
 * Growing structs
 *
 *     Structs that may get more members begin with `sz`: set it to sizeof, zero the rest and
 *     fill in what is wanted. Options may be NULL. In C++ (and C):
 *
 *         struct clrsym_resolve_opts opts;
 *         memset(&opts, 0, sizeof(opts));
 *         opts.sz = sizeof(opts);
 *         opts.wait_ms = 200;
 *
 * Example
 *
 *     struct clrsym *c;
 *     struct clrsym_process *p;
 *     struct clrsym_symbol sym;
 *     char name[512];
 *     int r;
 *
 *     r = clrsym_open(NULL, &c);
 *     if (r < 0)
 *         return fprintf(stderr, "%s\n", clrsym_strerror(r));
 *     r = clrsym_process_open(c, pid, 0, NULL, &p);
 *     if (r == 0) {
 *         clrsym_symbol_init(&sym, name, sizeof(name), NULL, 0);
 *         r = clrsym_lookup(p, ip, time_ns, 0, &sym);
 *         if (r == 0)
 *             printf("%s+0x%llx\n", name, (unsigned long long)sym.offset);
 *         clrsym_process_close(p);
 *     }
 *     clrsym_close(c);
 *
 * Build with `pkg-config --cflags --libs clrsym`. Symbols are versioned; as long as the library is
 * called libclrsym.so.0, a program built against an older header works with a newer library.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CLRSYM_API __attribute__((visibility("default")))

struct clrsym;
struct clrsym_process;
struct clrsym_monitor;

/* -- Symbols ---------------------------------------------------------------------------- */

/* Why an address has no name. Values are never reused; more may come. */
enum clrsym_reason {
	CLRSYM_NAMED = 0,          /* it has one */
	CLRSYM_UNANSWERED = 1,     /* the daemon could not be asked: the call's result says why */
	CLRSYM_UNMAPPED = 2,       /* nothing is there, or no code */
	CLRSYM_STUB = 3,           /* memory of the runtime in which no method ever was */
	CLRSYM_NATIVE = 4,         /* a library's code, or the program's own */
	CLRSYM_NOT_ANNOUNCED = 5,  /* memory for methods; the runtime has told of none here */
	CLRSYM_NOT_LOADED_YET = 6, /* a method came later; what was before is not known */
	CLRSYM_RETIRED = 7,        /* a method was there, and had been unloaded by then */
	CLRSYM_EXPIRED = 8,        /* so long ago that the daemon has forgotten */
	CLRSYM_DATA_LOST = 9,      /* the runtime dropped events around reason_ns */
	CLRSYM_OVER_CAP = 10,      /* left out over a limit */
	CLRSYM_NOT_ATTACHED = 11,  /* the daemon is not attached to the process */
	CLRSYM_DENIED = 12,        /* the daemon does not let us see the process */
	CLRSYM_OTHER = 13,         /* a reason that this version of the library does not know */
};

/*
 * An answer. The caller owns it, and the two texts it points to: they are filled in up to their
 * sizes and always end with a NUL (sizes 0: not wanted; names cost most of a lookup's time).
 */
struct clrsym_symbol {
	size_t sz; /* in: sizeof(struct clrsym_symbol) */

	/* in: room for texts; NULL with size 0 for none */
	char *name;       /* "Ns.Type::Method(args)" */
	size_t name_size; /* bytes; names are mostly short, and up to some KB */
	char *module;     /* path of the module's file; "" if not known */
	size_t module_size;

	/* out */
	uint64_t start;    /* of the code body */
	uint64_t size;     /* of it, in bytes; the body is [start, start + size) */
	uint64_t offset;   /* of the address from start (for a caller too: of the address itself) */
	int64_t il_offset; /* into the method's IL, or -1: none */
	uint64_t load_ns;  /* when the body came; 0: before the daemon was there to see it */
	uint64_t unload_ns; /* when it went; UINT64_MAX: it is still there */
	uint64_t method_id; /* the runtime's own; of all versions of a method the same */
	uint64_t reason_ns; /* of CLRSYM_DATA_LOST: around when; else 0 */
	uint32_t version;   /* native code version of the method, 0 for the first */
	uint32_t short_len; /* of the name (if wanted): the first bytes, without "(args)" */
	uint32_t reason;    /* enum clrsym_reason; 0: all of the above is filled in */
	bool final;         /* this will not change any more, hit or miss */
	bool truncated;     /* a text was longer than its room; cut at a character */
	char tier[34]; /* "OptimizedTier1", "QuickJitted", "ReadyToRun", ...; ends with a NUL */
};

/* Makes a symbol ready to be filled in, with room for texts (NULL and 0: none). */
static inline void clrsym_symbol_init(struct clrsym_symbol *sym, char *name, size_t name_size,
				      char *module, size_t module_size)
{
	unsigned char *p = (unsigned char *)sym;
	size_t i;

	for (i = 0; i < sizeof(*sym); i++)
		p[i] = 0;
	sym->sz = sizeof(*sym);
	sym->name = name;
	sym->name_size = name_size;
	sym->module = module;
	sym->module_size = module_size;
}

/* -- Handle ----------------------------------------------------------------------------- */

struct clrsym_open_opts {
	size_t sz;
	const char *socket_path; /* NULL: /run/clrsym/query.sock; copied */
	uint32_t timeout_ms;     /* of a call that is not told to wait; 0: 5000 */
};

/*
 * Connects to the daemon. opts may be NULL. *handlep is the caller's, for clrsym_close(). When the
 * daemon is restarted later, the next call that needs it connects again.
 */
CLRSYM_API int clrsym_open(const struct clrsym_open_opts *opts, struct clrsym **handlep);
/* NULL is fine. */
CLRSYM_API void clrsym_close(struct clrsym *handle);

/*
 * What the daemon said with the last error on this handle, a line for people: at most size bytes
 * with the NUL. Empty if it said nothing, and after fork(). Returns its length.
 */
CLRSYM_API size_t clrsym_error_detail(struct clrsym *handle, char *buf, size_t size);

/* -- Process ---------------------------------------------------------------------------- */

/*
 * Let the daemon attach to the process if it is not yet. It stays attached until it has not been
 * asked about for hold_s seconds, here or by another program of the same user. clrsym_resolve() and
 * clrsym_process_refresh() ask in time, looking up does not. When the daemon is restarted, it is
 * told again.
 */
#define CLRSYM_PROCESS_ATTACH 1u

struct clrsym_process_opts {
	size_t sz;
	uint32_t flags;   /* CLRSYM_PROCESS_* */
	uint32_t hold_s;  /* with ATTACH; 0: 60 */
	uint32_t wait_ms; /* with ATTACH: for all code to be known; 0: 10000, at most 60000 */
};

/*
 * Maps the code of a process, as the daemon knows it. opts may be NULL. *processp is the caller's,
 * for clrsym_process_close(). It stays of use when the process or the daemon ends.
 * The memory is the daemon's, some 300 bytes a method, and there once for all its readers.
 */
CLRSYM_API int clrsym_process_open(struct clrsym *handle, pid_t pid, uint64_t start,
				   const struct clrsym_process_opts *opts,
				   struct clrsym_process **processp);
/* NULL is fine. */
CLRSYM_API void clrsym_process_close(struct clrsym_process *process);

/* Its start time: with the process id its identity. No system call. */
CLRSYM_API uint64_t clrsym_process_start_time(const struct clrsym_process *process);
/* Answers of clrsym_lookup() for times up to this one are final. No system call. */
CLRSYM_API uint64_t clrsym_known_until(const struct clrsym_process *process);
/* Has the process ended? What is known is then all. No system call. */
CLRSYM_API bool clrsym_process_has_ended(const struct clrsym_process *process);

/*
 * Looks whether the daemon has put the process's code into a new, larger piece of memory, or was
 * restarted, and maps that. clrsym_resolve() does the same by itself; a program that only looks up
 * calls this now and then, say every second. While all is well it costs no more than a look at the
 * clock. Memory that was mapped before stays until the process is closed, so that lookups may go
 * on meanwhile. Returns 1: mapped something new, 0: nothing new, or a negative errno: there should
 * be something, and the old memory goes on answering.
 */
CLRSYM_API int clrsym_process_refresh(struct clrsym_process *process);

/* -- Questions -------------------------------------------------------------------------- */

/*
 * A return address, taken from a stack: belongs to the call before it, and is looked up one byte
 * before. Wanted for all frames of a stack but the innermost.
 */
#define CLRSYM_CALLER 1u

/*
 * The method at an address at a time (0: alive now), from shared memory alone: no system call,
 * no allocation, no lock; any number of threads. Of bodies that are gone it knows the latest.
 * Returns 0; -ENOENT: not there, the daemon may know more, or why (clrsym_resolve()); -EINVAL.
 * On errors the symbol's reason is CLRSYM_UNANSWERED.
 */
CLRSYM_API int clrsym_lookup(const struct clrsym_process *process, uint64_t addr, uint64_t time_ns,
			     uint32_t flags, struct clrsym_symbol *sym);

struct clrsym_query {
	uint64_t addr;
	uint64_t time_ns; /* 0: last known state */
	uint32_t flags;   /* CLRSYM_CALLER */
	uint32_t zero;
};

struct clrsym_resolve_opts {
	size_t sz;
	uint32_t wait_ms; /* wait so long for final answers; 0: no; at most 500, and timeout_ms / 2
			   */
};

/*
 * n questions, n answers, in the same order; all symbols with the same sz. First as by
 * clrsym_lookup(); what is left (with wait_ms also what is not final) goes to the daemon, in as few
 * calls as its limits allow. opts may be NULL.
 *
 * Returns 0: each symbol has a name, or the true reason for having none. A negative errno:
 * some could not be asked; these have the reason CLRSYM_UNANSWERED (all others are good), but for
 * -EINVAL and -E2BIG, on which no symbol is touched.
 */
CLRSYM_API int clrsym_resolve(struct clrsym_process *process, const struct clrsym_query *queries,
			      struct clrsym_symbol *symbols, size_t n,
			      const struct clrsym_resolve_opts *opts);

/* -- Monitor ---------------------------------------------------------------------------- */

enum clrsym_change {
	CLRSYM_CHANGE_LOAD = 1,   /* a body came */
	CLRSYM_CHANGE_UNLOAD = 2, /* it went: unload_ns says when */
	CLRSYM_CHANGE_ALTER = 3,  /* what was known of it was corrected */
	CLRSYM_CHANGE_RESYNC = 4, /* changes were left out; there is no symbol with it */
};

/*
 * Begins to watch a process; changes from now on are kept for clrsym_monitor_next(), for some
 * seconds. It has a connection of its own. *monitorp is the caller's.
 */
CLRSYM_API int clrsym_monitor_open(struct clrsym_process *process,
				   struct clrsym_monitor **monitorp);
/* NULL is fine. */
CLRSYM_API void clrsym_monitor_close(struct clrsym_monitor *monitor);
/* For poll(): readable when a change may be there. Take all until -EAGAIN before polling. */
CLRSYM_API int clrsym_monitor_fd(const struct clrsym_monitor *monitor);
/*
 * The next change; waits up to timeout_ms (0: not at all, -1: for ever). sym is filled in as by
 * a lookup of the body's start. Returns 0; -EAGAIN: none came; -ENODATA: the process has ended, no
 * more will come; another negative errno: the monitor is of no use any more.
 */
CLRSYM_API int clrsym_monitor_next(struct clrsym_monitor *monitor, int timeout_ms,
				   enum clrsym_change *changep, struct clrsym_symbol *sym);

/* -- Texts ------------------------------------------------------------------------------ */

/* All static, in English, never NULL. err: as returned, or positive. */
CLRSYM_API const char *clrsym_strerror(int err);
/* "unmapped", "retired", "data lost", ...; "" for CLRSYM_NAMED. */
CLRSYM_API const char *clrsym_reason_text(uint32_t reason);
/*
 * The same of a symbol, with the time where there is one ("data lost at 4144684449616"): at most
 * size bytes with the NUL. Returns the length of the whole text, as snprintf() does.
 */
CLRSYM_API size_t clrsym_reason_format(const struct clrsym_symbol *sym, char *buf, size_t size);
/* Of the library, e.g. "0.1.0". */
CLRSYM_API const char *clrsym_version(void);

#ifdef __cplusplus
}
#endif

#endif
