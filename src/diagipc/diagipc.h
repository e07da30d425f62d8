/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * Diagnostic IPC: the messages of a .NET runtime's diagnostic port, to and from bytes.
 *
 * A malformed request kills many runtimes (dotnet/runtime#101764), so this module cannot
 * build one: requests come from diagipc_request() alone, which knows the few commands that
 * may ever leave this program and checks every field before it writes a byte. One command
 * a connection; the whole message is to be sent in one write, for a runtime reads it with
 * blocking calls on its only server thread. After an error reply close the connection: some
 * runtimes (9 and later) never do.
 * Format: documentation/design-docs/ipc-protocol.md of dotnet/diagnostics.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/reader.h"

#define DIAGIPC_HEADER_SIZE 20u

/* Everything this program ever sends. Values are (command set << 8 | command id). */
enum diagipc_command {
	DIAGIPC_STOP_TRACING = 0x0201,
	DIAGIPC_COLLECT_TRACING2 = 0x0203,
	DIAGIPC_COLLECT_TRACING3 = 0x0204,
	DIAGIPC_COLLECT_TRACING4 = 0x0205,
	DIAGIPC_COLLECT_TRACING5 = 0x0206,
	DIAGIPC_COLLECT_TRACING6 = 0x0207,
	DIAGIPC_PROCESS_INFO = 0x0400,
	DIAGIPC_PROCESS_INFO2 = 0x0404,
	DIAGIPC_PROCESS_INFO3 = 0x0408,
};

/* Runtime versions decide which command a session is asked with. 0.0 = not known. */
struct diagipc_version {
	uint32_t major, minor, patch;
};

struct diagipc_provider {
	const char *name; /* printable ASCII, not empty, once in a session */
	uint64_t keywords;
	uint32_t level; /* 0 to 5 */
	/* CollectTracing5 and later: only these ids; n 0 = all. Older commands ignore it. */
	const uint32_t *event_ids;
	size_t n_event_ids;
};

/* A session to ask for, independent of the command that carries it. */
struct diagipc_session {
	uint32_t buffer_mb;        /* 1 to 65536 */
	uint64_t rundown_keywords; /* 0 = no rundown; a mere flag for CollectTracing2 and 3 */
	const struct diagipc_provider *providers;
	size_t n_providers; /* 1 to 1000 */
};

union diagipc_args {
	uint64_t session_id;            /* STOP_TRACING; never 0 */
	struct diagipc_session session; /* COLLECT_TRACING* */
};

/*
 * Appends one whole request, or nothing. args may be NULL for PROCESS_INFO*. Returns 0, -ENOMEM,
 * -ENOSPC (message over 65,535 bytes, or out is full) or -EINVAL (a field that no runtime must
 * ever see: a caller's bug).
 */
int diagipc_request(struct buf *out, enum diagipc_command command, const union diagipc_args *args);

/*
 * The command to ask a session of this runtime with, and the one to try (on a new connection)
 * when it answers UNKNOWN_COMMAND; 0 when there is none. A runtime that does not know
 * PROCESS_INFO is a 3.x.
 */
enum diagipc_command diagipc_session_command(const struct diagipc_version *version);
enum diagipc_command diagipc_session_fallback(enum diagipc_command command);

/* Positive codes of the reply functions. */
enum diagipc_error {
	DIAGIPC_E_MORE = 1,  /* not whole yet: read on */
	DIAGIPC_E_MALFORMED, /* not a reply of this protocol */
	DIAGIPC_E_REFUSED,   /* a well-formed error reply: see hresult */
};

#define DIAGIPC_BAD_ENCODING          0x80131384u
#define DIAGIPC_UNKNOWN_COMMAND       0x80131385u
#define DIAGIPC_UNKNOWN_MAGIC         0x80131386u
#define DIAGIPC_NOT_SUPPORTED         0x80131515u
#define DIAGIPC_FAIL                  0x80004005u
#define DIAGIPC_NOT_YET_AVAILABLE     0x8013135bu
#define DIAGIPC_RUNTIME_UNINITIALIZED 0x80131371u

struct diagipc_reply {
	size_t size;            /* of the message: what follows it is the session's stream */
	const uint8_t *payload; /* borrowed */
	size_t payload_size;
	uint32_t hresult; /* REFUSED only */
};

/*
 * Looks at the first bytes of a connection; what cannot become a reply is MALFORMED at its
 * first wrong byte. Returns 0 or a code; *reply is set on 0 and REFUSED only.
 */
int diagipc_reply_parse(const void *bytes, size_t n, struct diagipc_reply *reply);
/* "UNKNOWN_COMMAND", or the number in hex (static buffer). */
const char *diagipc_hresult_text(uint32_t hresult);

/* Payload of a CollectTracing* or StopTracing reply. Returns 0 or DIAGIPC_E_MALFORMED. */
int diagipc_parse_session_id(const struct diagipc_reply *reply, uint64_t *idp);

struct diagipc_process_info {
	uint64_t pid; /* as the process sees itself */
	uint8_t cookie[16];
	/* UTF-8, owned; NULL when the command has no such field, perhaps empty when it has */
	char *command_line, *os, *arch, *assembly, *version_text, *rid;
	struct diagipc_version version; /* of version_text; 0.0 when unknown */
};

/*
 * command: the PROCESS_INFO* that was asked. Returns 0, -ENOMEM, -EINVAL (another command) or
 * DIAGIPC_E_MALFORMED; then *info holds nothing.
 */
int diagipc_parse_process_info(const struct diagipc_reply *reply, enum diagipc_command command,
			       struct diagipc_process_info *info);
void diagipc_process_info_deinit(struct diagipc_process_info *info);

#define _cleanup_diagipc_process_info_ _cleanup_(diagipc_process_info_deinit)

/* "10.0.15", "11.0.0-preview.1.x"; 0.0.0 for what does not begin so. */
void diagipc_version_parse(const char *text, struct diagipc_version *version);
