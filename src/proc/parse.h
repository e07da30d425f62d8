/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The texts of /proc, to values. Pure functions over bytes: no I/O, no allocation, no
 * globals. The kernel writes these texts, but a process chooses some of what stands in
 * them (its name, environment, paths of mappings and sockets, cgroup names), so nothing is
 * taken for granted: whatever does not parse is "not there".
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* A piece of somebody's buffer. Not terminated. */
struct text {
	const char *p;
	const char *end;
};

static inline struct text text_of(const void *data, size_t len)
{
	const char *p = data;

	return (struct text){ p, p ? p + len : p };
}

static inline size_t text_len(struct text t)
{
	return (size_t)(t.end - t.p);
}

/* Takes the next line, without its newline. False when there is none. */
bool text_line(struct text *t, struct text *linep);
/* Takes the next word; blanks and tabs part words. False when there is none. */
bool text_word(struct text *t, struct text *wordp);
/* The whole of t is a number in that base, without sign or prefix. */
bool text_u64(struct text t, unsigned int base, uint64_t *valuep);
bool text_equal(struct text t, const char *s);
bool text_begins(struct text t, const char *s);
bool text_ends(struct text t, const char *s);
/* What follows the last slash. */
struct text text_basename(struct text t);

/* /proc/PID/stat; proc_pid_stat(5). The name may hold blanks and parentheses. */
struct parse_stat {
	struct text comm;
	char state;
	uint64_t parent;      /* field 4 */
	uint64_t start;       /* field 22 */
	uint64_t start_code;  /* field 26; 0 or 1 without the right to look */
	uint64_t start_stack; /* field 28 */
};
bool parse_stat(struct text t, struct parse_stat *out);

/* /proc/PID/status; only what is needed. */
#define PARSE_MAX_GROUPS 256
struct parse_status {
	uid_t uid, euid, suid, fsuid;
	gid_t gid, egid, sgid, fsgid;
	pid_t inner_pid; /* last of NSpid; 0 if the line is missing (before 4.1) */
	size_t n_groups; /* supplementary; those past the cap are left out */
	gid_t groups[PARSE_MAX_GROUPS];
};
bool parse_status(struct text t, struct parse_status *out);

/* "NAME=value" among the NUL-separated entries; the first one counts, as with getenv(). */
bool parse_environ(struct text t, const char *name, struct text *valuep);

/* /proc/PID/timens_offsets: "clock seconds nanoseconds" a line; a missing clock is 0. */
bool parse_timens_offsets(struct text t, int64_t *monotonic_nsp, int64_t *boottime_nsp);

/* /proc/PID/uid_map, gid_map: the outside id of inside id 0. */
bool parse_id_map_root(struct text t, uint32_t *idp);

/* /proc/PID/cgroup: the path in the unified tree and in the v1 memory tree; empty if absent. */
void parse_cgroup(struct text t, struct text *v2p, struct text *v1_memoryp);

/* One line of /proc/PID/maps. The path is as the kernel writes it (newline as \012). */
struct parse_mapping {
	uint64_t start, end, offset, inode;
	char perms[5];
	struct text path; /* empty for an anonymous one */
};
bool parse_mapping(struct text line, struct parse_mapping *out);

/*
 * One line of /proc/self/mountinfo; proc_pid_mountinfo(5). root and mount_point still
 * carry the kernel's octal escapes.
 */
struct parse_mount {
	struct text root, mount_point, type, super_options;
};
bool parse_mount(struct text line, struct parse_mount *out);
/* Undoes \040 and its kin. Returns the length, or -1 when it does not fit size - 1 bytes. */
ssize_t parse_unescape(struct text t, char *out, size_t size);
/* Is word one of the comma-separated options? */
bool parse_has_option(struct text options, const char *word);

/* One line of /proc/net/unix. False for the heading and for unbound sockets. */
struct parse_unix_socket {
	bool listening;
	struct text path;
};
bool parse_unix_socket(struct text line, struct parse_unix_socket *out);

/* A line "key value" or "key: value kB" (meminfo, memory.stat, VmRSS of status). */
bool parse_key(struct text t, const char *key, uint64_t *valuep);

/* "dotnet-diagnostic-PID-KEY-socket", for that PID. */
bool parse_socket_name(struct text name, pid_t pid, uint64_t *keyp);
