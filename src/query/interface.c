/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface in varlink's own language: what introspecting clients are shown, and the
 * reference for all others. Two things are for a parser in use (varlink's Go library): no comment
 * line is empty, as it skips the line after one; and the interface has a second name, the same in
 * lower case, as that parser takes no other.
 */
#include "query/symbols.h"

#include <string.h>

#define SYMBOLS_HEAD \
	"# Names for the code of .NET processes: which method lies at an address, at a time.\n" \
	"# Addresses: integers, or strings \"0x7f..\" of hex digits (needed from 2^63 on).\n" \
	"# Times: ns of CLOCK_MONOTONIC (what BPF's bpf_ktime_get_ns() gives),\n" \
	"# integers or decimal strings; 0 or none: the last known state. pid: as the caller " \
	"sees\n" \
	"# it. start: field 22 of /proc/PID/stat; with it a pid that was reused is never\n" \
	"# mistaken.\n" \
	"# Null is the same as absent. A parameter that a method does not have is an error\n" \
	"# (InvalidParameter), and so is one that is out of range: nothing is cut or guessed.\n"

#define SYMBOLS_BODY \
	"\n" \
	"# A code body: one compiled form of a method. function is the full name as people read\n" \
	"# it; ns, name and sig are the runtime's own. load: when it came (0: before anything " \
	"is\n" \
	"# known); unload: when it went (null: it is there).\n" \
	"type Method (\n" \
	"  method_id: string,\n" \
	"  ns: string,\n" \
	"  name: string,\n" \
	"  sig: string,\n" \
	"  module: ?string,\n" \
	"  tier: string,\n" \
	"  start: string,\n" \
	"  size: int,\n" \
	"  version: int,\n" \
	"  load: int,\n" \
	"  unload: ?int,\n" \
	"  function: string\n" \
	")\n" \
	"\n" \
	"# A process that is attached to, or was (state ended; its answers stay for a while).\n" \
	"# state: connecting, opening, rundown, live, waiting, stopping, ended.\n" \
	"type Process (\n" \
	"  pid: int,\n" \
	"  start: int,\n" \
	"  uid: int,\n" \
	"  comm: string,\n" \
	"  runtime: string,\n" \
	"  state: string,\n" \
	"  complete: bool,\n" \
	"  bodies: int,\n" \
	"  precompiled: int,\n" \
	"  retired: int,\n" \
	"  bytes: int,\n" \
	"  known_until: int,\n" \
	"  lost: int,\n" \
	"  reason: ?string\n" \
	")\n" \
	"\n" \
	"# kind: domain, assembly, module. name: of a module the path of its IL file. pdb_id:\n" \
	"# GUID of its PDB.\n" \
	"type Module (\n" \
	"  kind: string,\n" \
	"  id: string,\n" \
	"  parent: string,\n" \
	"  name: string,\n" \
	"  native_path: ?string,\n" \
	"  pdb_path: ?string,\n" \
	"  pdb_id: ?string,\n" \
	"  pdb_age: ?int,\n" \
	"  flags: int,\n" \
	"  load: int,\n" \
	"  unload: ?int\n" \
	")\n" \
	"\n" \
	"# change: load, unload, alter (what was known of it was corrected), or resync (changes\n" \
	"# were left out: ask for all methods again; method is null).\n" \
	"type Change (\n" \
	"  change: string,\n" \
	"  method: ?Method\n" \
	")\n" \
	"\n" \
	"# Names addresses, or the addresses of stacks (leaf first; the reply has them one " \
	"after\n" \
	"# the other). time is for all; times are one an address, or one a stack. caller: they\n" \
	"# are return addresses and looked up one byte before; of a stack all but the first are\n" \
	"# anyway. wait_ms (at most 500): hold the reply until it is final. Either addresses or\n" \
	"# stacks, and not both of time and times; at most 16384 addresses, in at most 1 MiB.\n" \
	"# method[i] is an index into methods[], or null with a reason[i]: unmapped, stub,\n" \
	"# native, not announced, not loaded yet, retired, expired, data lost at NS, over a " \
	"cap,\n" \
	"# not attached, denied. offset[i] is from the body's start, il_offset[i] into the IL.\n" \
	"# Answers for times after known_until may still change; final: none of these can.\n" \
	"method Resolve(\n" \
	"  pid: int,\n" \
	"  start: ?int,\n" \
	"  addresses: ?[]object,\n" \
	"  stacks: ?[][]object,\n" \
	"  time: ?object,\n" \
	"  times: ?[]object,\n" \
	"  caller: ?bool,\n" \
	"  wait_ms: ?int\n" \
	") -> (\n" \
	"  methods: []Method,\n" \
	"  method: []?int,\n" \
	"  offset: []?int,\n" \
	"  il_offset: []?int,\n" \
	"  reason: []?string,\n" \
	"  known_until: int,\n" \
	"  final: bool\n" \
	")\n" \
	"\n" \
	"# Everything known of a process's code between two times (none: all), as a sealed " \
	"memfd\n" \
	"# that comes with the reply. code: with code bytes (root and the owner only).\n" \
	"# wait_ms (at most 10000): until the code of all times up to now is known.\n" \
	"method Export(pid: int, start: ?int, from: ?object, to: ?object, code: ?bool,\n" \
	"  wait_ms: ?int) -> (bytes: int, bodies: int, known_until: int)\n" \
	"\n" \
	"# A process's code in shared memory, as a memfd that comes with the reply and is kept " \
	"up\n" \
	"# to date as long as the connection is open.\n" \
	"method Snapshot(pid: int, start: ?int) -> (bytes: int, start: int, generation: int)\n" \
	"\n" \
	"method ListProcesses() -> (processes: []Process)\n" \
	"method ListModules(pid: int, start: ?int) -> (modules: []Module)\n" \
	"\n" \
	"# Methods that are alive, by address; with `more` in several replies.\n" \
	"# retired: those, too.\n" \
	"method ListMethods(pid: int, start: ?int, retired: ?bool) -> (methods: []Method)\n" \
	"\n" \
	"# Attaches, and replies when the code is known (wait_ms at most 60000; 0: at once).\n" \
	"# Attached it stays until Detach, or for hold_s seconds after the last use if given.\n" \
	"method Attach(pid: int, hold_s: ?int, wait_ms: ?int) -> (process: Process)\n" \
	"\n" \
	"# Takes the caller's own Attach back; sessions end when nobody else wants them.\n" \
	"method Detach(pid: int, start: ?int) -> ()\n" \
	"\n" \
	"# Rewrites the process's perf maps at once; files: those that are kept.\n" \
	"method WriteMap(pid: int, start: ?int) -> (files: []string, methods: int)\n" \
	"\n" \
	"# Changes to a process's code as they come; to be called with `more`.\n" \
	"method Monitor(pid: int, start: ?int) -> (changes: []Change)\n" \
	"\n" \
	"# The daemon itself.\n" \
	"method Status() -> (\n" \
	"  version: string,\n" \
	"  pid: int,\n" \
	"  uptime_ms: int,\n" \
	"  processes: int,\n" \
	"  clients: int,\n" \
	"  requests: int,\n" \
	"  addresses: int,\n" \
	"  hits: int,\n" \
	"  dropped: int,\n" \
	"  client_bytes: int\n" \
	")\n" \
	"\n" \
	"error NoSuchProcess(pid: int)\n" \
	"error NotAttached(pid: int)\n" \
	"error NotYours(pid: int)\n" \
	"error CannotAttach(pid: int, reason: string)\n" \
	"error ForeignNamespace(pid: int)\n" \
	"error Busy(reason: string)\n" \
	"error Failed(reason: string)\n"

static const char symbols[] = SYMBOLS_HEAD "interface " QUERY_INTERFACE "\n" SYMBOLS_BODY;
static const char symbols_lower[] =
	SYMBOLS_HEAD "interface " QUERY_INTERFACE_LOWER "\n" SYMBOLS_BODY;

static const char service[] =
	"# What every varlink service answers.\n"
	"interface org.varlink.service\n"
	"\n"
	"method GetInfo() -> (\n"
	"  vendor: string,\n"
	"  product: string,\n"
	"  version: string,\n"
	"  url: string,\n"
	"  interfaces: []string\n"
	")\n"
	"\n"
	"method GetInterfaceDescription(interface: string) -> (description: string)\n"
	"\n"
	"error InterfaceNotFound(interface: string)\n"
	"error MethodNotFound(method: string)\n"
	"error MethodNotImplemented(method: string)\n"
	"error InvalidParameter(parameter: string)\n"
	"error PermissionDenied()\n"
	"error ExpectedMore()\n";

const char *query_description(const char *interface)
{
	if (strcmp(interface, QUERY_INTERFACE) == 0)
		return symbols;
	if (strcmp(interface, QUERY_INTERFACE_LOWER) == 0)
		return symbols_lower;
	return strcmp(interface, QUERY_SERVICE) == 0 ? service : NULL;
}
