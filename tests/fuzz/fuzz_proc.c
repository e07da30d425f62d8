/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Texts of /proc, of which a process chooses a part. The first byte chooses the parser.
 *
 * Held besides memory safety: every piece handed out lies within the bytes that came in.
 */
#include <stdint.h>
#include <string.h>

#include "proc/parse.h"

#include "base/util.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct text whole;

static void check(bool good)
{
	if (!good)
		abort();
}

static void check_inside(struct text t)
{
	if (t.p)
		check(t.p >= whole.p && t.end >= t.p && t.end <= whole.end);
}

static void fuzz_stat(struct text t)
{
	struct parse_stat stat;

	if (parse_stat(t, &stat))
		check_inside(stat.comm);
}

static void fuzz_status(struct text t)
{
	struct parse_status status;

	if (parse_status(t, &status))
		check(status.n_groups <= PARSE_MAX_GROUPS && status.inner_pid >= 0);
}

static void fuzz_environ(struct text t)
{
	struct text value;

	if (parse_environ(t, "TMPDIR", &value)) {
		check_inside(value);
		check(!memchr(value.p, '\0', text_len(value)));
		check(value.p - whole.p >= 7 && memcmp(value.p - 7, "TMPDIR=", 7) == 0);
	}
}

static void fuzz_offsets(struct text t)
{
	int64_t monotonic, boottime;

	parse_timens_offsets(t, &monotonic, &boottime);
}

static void fuzz_id_map(struct text t)
{
	uint32_t id;

	parse_id_map_root(t, &id);
}

static void fuzz_cgroup(struct text t)
{
	struct text v2, v1;

	parse_cgroup(t, &v2, &v1);
	check_inside(v2);
	check_inside(v1);
}

static void fuzz_maps(struct text t)
{
	struct parse_mapping mapping;
	struct text line;

	while (text_line(&t, &line)) {
		check_inside(line);
		if (parse_mapping(line, &mapping)) {
			check_inside(mapping.path);
			check_inside(text_basename(mapping.path));
			check(mapping.end >= mapping.start && strlen(mapping.perms) <= 4);
		}
	}
}

static void fuzz_mounts(struct text t)
{
	struct parse_mount mount;
	struct text line;
	char path[64];

	while (text_line(&t, &line)) {
		if (!parse_mount(line, &mount))
			continue;
		check_inside(mount.root);
		check_inside(mount.super_options);
		if (parse_unescape(mount.mount_point, path, sizeof(path)) >= 0)
			check(strlen(path) < sizeof(path));
		parse_has_option(mount.super_options, "memory");
	}
}

static void fuzz_sockets(struct text t)
{
	struct parse_unix_socket sock;
	struct text line;
	uint64_t key;

	while (text_line(&t, &line)) {
		if (!parse_unix_socket(line, &sock))
			continue;
		check_inside(sock.path);
		check(text_len(sock.path) > 0);
		parse_socket_name(text_basename(sock.path), 1, &key);
	}
}

static void fuzz_key(struct text t)
{
	uint64_t value;

	parse_key(t, "inactive_file", &value);
	parse_key(t, "MemAvailable", &value);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static void (*const parsers[])(struct text) = {
		fuzz_stat,   fuzz_status, fuzz_environ, fuzz_offsets, fuzz_id_map,
		fuzz_cgroup, fuzz_maps,   fuzz_mounts,  fuzz_sockets, fuzz_key,
	};

	if (size < 1)
		return 0;
	whole = text_of(data + 1, size - 1);
	parsers[data[0] % ARRAY_SIZE(parsers)](whole);
	return 0;
}
