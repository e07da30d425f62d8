/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Small things every file needs: cleanup attributes, hand-over of ownership,
 * and the arithmetic helpers that the standard library lacks.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define ARRAY_SIZE(a)          (sizeof(a) / sizeof((a)[0]))
#define UNUSED                 __attribute__((unused))
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))
#define NORETURN               __attribute__((noreturn))
#define NOINLINE               __attribute__((noinline))
#define likely(x)              __builtin_expect(!!(x), 1)
#define unlikely(x)            __builtin_expect(!!(x), 0)

/* An argument may be evaluated twice. */
#define MIN(a, b)                       ((a) < (b) ? (a) : (b))
#define MAX(a, b)                       ((a) > (b) ? (a) : (b))

#define container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

/* _cleanup_(fn) runs fn(&var) when the variable leaves its scope. */
#define _cleanup_(fn) __attribute__((cleanup(fn)))

/* Gives the pointer away: the variable's cleanup then has nothing to do. */
#define TAKE_PTR(p) \
	({ \
		__typeof__(p) *take_pp = &(p); \
		__typeof__(p) take_p = *take_pp; \
		*take_pp = NULL; \
		take_p; \
	})

#define TAKE_FD(fd) \
	({ \
		int *take_fdp = &(fd); \
		int take_fd = *take_fdp; \
		*take_fdp = -1; \
		take_fd; \
	})

/* Defines fn##p(): the form that the cleanup attribute wants. */
#define DEFINE_CLEANUP(type, fn) \
	static inline void fn##p(type *p) \
	{ \
		if (*p) \
			fn(*p); \
	}

static inline void freep(void *p)
{
	free(*(void **)p);
}

static inline int fd_close(int fd)
{
	if (fd >= 0)
		close(fd);
	return -1;
}

static inline void fd_closep(int *fdp)
{
	*fdp = fd_close(*fdp);
}

static inline void file_closep(FILE **fp)
{
	if (*fp)
		fclose(*fp);
}

#define _cleanup_free_   _cleanup_(freep)
#define _cleanup_close_  _cleanup_(fd_closep)
#define _cleanup_fclose_ _cleanup_(file_closep)
