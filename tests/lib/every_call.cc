// SPDX-License-Identifier: Apache-2.0
//
// The header as C++ sees it, and every function of the shared library called once, without a daemon.

#include <clrsym.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

static int failed;

static void expect(bool ok, const char *what)
{
	if (!ok) {
		std::printf("every_call: %s\n", what);
		failed = 1;
	}
}

template <typename T> static T sized()
{
	T t;

	std::memset(&t, 0, sizeof(t));
	t.sz = sizeof(t);
	return t;
}

static void call_without_handle(clrsym_symbol *sym)
{
	clrsym_process_opts opts = sized<clrsym_process_opts>();
	clrsym_resolve_opts resolve_opts = sized<clrsym_resolve_opts>();
	clrsym_query query = { 0x1000, 0, CLRSYM_CALLER, 0 };
	clrsym_process *process = nullptr;
	clrsym_monitor *monitor = nullptr;
	clrsym_change change = CLRSYM_CHANGE_LOAD;
	char detail[8] = "x";

	opts.flags = CLRSYM_PROCESS_ATTACH;
	expect(clrsym_process_open(nullptr, 1, 0, &opts, &process) == -EINVAL, "process_open");
	expect(clrsym_process_refresh(nullptr) == -EINVAL, "process_refresh");
	expect(clrsym_process_start_time(nullptr) == 0, "process_start_time");
	expect(!clrsym_process_has_ended(nullptr), "process_has_ended");
	expect(clrsym_known_until(nullptr) == 0, "known_until");
	expect(clrsym_lookup(nullptr, 0x1000, 0, 0, sym) == -EINVAL, "lookup");
	expect(clrsym_resolve(nullptr, &query, sym, 1, &resolve_opts) == -EINVAL, "resolve");
	expect(clrsym_monitor_open(nullptr, &monitor) == -EINVAL, "monitor_open");
	expect(clrsym_monitor_fd(nullptr) == -EINVAL, "monitor_fd");
	expect(clrsym_monitor_next(nullptr, 0, &change, sym) == -EINVAL, "monitor_next");
	expect(clrsym_error_detail(nullptr, detail, sizeof(detail)) == 0 && !detail[0],
	       "error_detail");
	clrsym_monitor_close(monitor);
	clrsym_process_close(process);
	clrsym_close(nullptr);
}

int main()
{
	clrsym_open_opts opts = sized<clrsym_open_opts>();
	clrsym *handle = nullptr;
	clrsym_symbol sym;
	char name[16], text[32];

	opts.socket_path = "/nowhere/query.sock";
	expect(clrsym_open(&opts, &handle) == -ECONNREFUSED && !handle, "open");
	clrsym_symbol_init(&sym, name, sizeof(name), nullptr, 0);
	call_without_handle(&sym);
	sym.reason = CLRSYM_STUB;
	expect(clrsym_reason_format(&sym, text, sizeof(text)) == 4 && !std::strcmp(text, "stub"),
	       "reason_format");
	expect(!std::strcmp(clrsym_reason_text(CLRSYM_STUB), "stub"), "reason_text");
	expect(std::strstr(clrsym_strerror(-ESRCH), "process") != nullptr, "strerror");
	expect(std::strlen(clrsym_version()) > 0, "version");
	std::printf("every_call: %s\n", failed ? "failed" : "every function can be called from C++");
	return failed;
}
