/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each allocation of the query protocol fails in turn, both sides, jansson's own too: they are
 * sent through malloc calls of this file, which the shim sees. The answer is -ENOMEM, nothing is
 * left of a message, nothing leaks.
 *
 * Two things are jansson's. It tells want of memory from bad syntax only sometimes, so that a
 * message may be taken for a bad one. And its buffer of a token must not fail to grow (see
 * src/query/wire.c), so that what is parsed here has tokens of less than its first 16 bytes.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <jansson.h>

#include "base/caps.h"
#include "query/client.h"
#include "query/symbols.h"
#include "query/wire.h"

void torture_arm(unsigned long n);
unsigned long torture_count(void);

static void check(bool good, const char *what, unsigned long n)
{
	if (good)
		return;
	fprintf(stderr, "torture_query: allocation %lu: %s\n", n, what);
	exit(EXIT_FAILURE);
}

static void *json_malloc(size_t size)
{
	return malloc(size);
}

static void json_free(void *p)
{
	free(p);
}

/* Many small values, each container once. */
static const char request[] =
	"{\"method\":\"a.b.C\",\"parameters\":{\"pid\":5,\"stacks\":[[1,2,\"0x3\",4,5,6,7,8,9,10],"
	"[11,12],[],[1],[2],[3],[4],[5],[6],[7]],\"times\":[1,2,3,\"4\",5,6,7,8,9,10],"
	"\"caller\":true,\"wait_ms\":50},\"more\":false}";

static int receive(struct wire *wire, const char *text, size_t len)
{
	uint8_t *p;
	size_t n;
	int r = 0;

	while (len && !r) {
		r = wire_room(wire, len, &p, &n);
		if (r)
			break;
		memcpy(p, text, n);
		wire_received(wire, n);
		text += n;
		len -= n;
	}
	return r;
}

static int put_answers(const struct query_resolve *req, struct query_answers *a, struct buf *out)
{
	static const char text[] = "some.text";
	const struct query_method m = { .tier = text,
					.ns = text,
					.ns_len = 9,
					.name = text,
					.name_len = 9,
					.sig = text,
					.sig_len = 9,
					.function = text,
					.function_len = 9 };
	size_t i;

	for (i = 0; i < req->n; i++) {
		query_answers_hit(a, query_answers_method(a, &m), 1, 2);
		query_answers_miss(a, QUERY_REASON_STUB);
	}
	return query_answers_reply(a, 1, true, out);
}

/* The server's side: a request to its reply. */
static int serve(unsigned long n)
{
	_cleanup_(json_decrefp) json_t *msg = NULL;
	_cleanup_buf_ struct buf out;
	struct query_resolve req = { 0 };
	struct query_answers a;
	struct wire_call call;
	const char *bad = NULL;
	struct wire wire;
	int r;

	buf_init(&out, CAP_QUERY_OUT);
	wire_init(&wire, &wire_request_limits);
	query_answers_init(&a, CAP_QUERY_OUT);
	r = receive(&wire, request, sizeof(request));
	if (!r)
		r = wire_next(&wire, &msg);
	check(!r == !!msg, "a message and an error", n);
	if (!r) {
		check(!wire_parse_call(msg, &call), "not a call", n);
		r = query_resolve_parse(&req, call.parameters, &bad);
		check(!r == !!req.items, "items and an error", n);
		check(r || (req.n == 19 && req.items[2].addr == 3 && req.items[18].time == 10),
		      "other items", n);
	}
	if (!r)
		r = put_answers(&req, &a, &out);
	check(!r == !!out.len, "part of a reply", n);
	check(!bad, "refused", n);
	query_resolve_deinit(&req);
	query_answers_deinit(&a);
	wire_deinit(&wire);
	return r;
}

/* Messages out of trees of values. */
static int put(unsigned long n)
{
	_cleanup_(json_decrefp) json_t *tree = json_pack("{s:[i,i,{s:s}]}", "a", 1, 2, "b", "c");
	_cleanup_buf_ struct buf out;
	size_t len;
	int r;

	buf_init(&out, 4096);
	if (!tree)
		return -ENOMEM;
	r = wire_put_call(&out, "a.b.C", tree, true);
	check(!r == !!out.len, "part of a call", n);
	if (r)
		return r;
	len = out.len;
	r = wire_put_reply(&out, tree, false);
	check(!r == (out.len > len), "part of a reply", n);
	if (r)
		return r;
	len = out.len;
	r = wire_put_error(&out, "a.b.D", tree);
	check(!r == (out.len > len), "part of an error", n);
	return r;
}

/* -- The client: a server beside it that answers every connection alike --------------------- */

static const char path[] = "/tmp/clrsym-torture-query";
static struct sockaddr_un server_addr = { .sun_family = AF_UNIX };

/* Without allocations, so that only the client's are counted. */
static void *answer(void *listener)
{
	static const char ok[] = "{\"parameters\":{\"x\":[1,2]}}";
	static const char error[] = "{\"error\":\"a.b.D\",\"parameters\":{\"reason\":\"r\"}}";
	char bytes[512];
	int fd;

	while ((fd = accept(*(int *)listener, NULL, NULL)) >= 0) {
		if (recv(fd, bytes, sizeof(bytes), 0) > 0) {
			send(fd, ok, sizeof(ok), MSG_NOSIGNAL);
			if (recv(fd, bytes, sizeof(bytes), 0) > 0)
				send(fd, error, sizeof(error), MSG_NOSIGNAL);
		}
		close(fd);
	}
	return NULL;
}

static int ask(unsigned long n)
{
	_cleanup_(query_client_freep) struct query_client *c = NULL;
	json_t *reply, *parameters;
	int r;

	r = query_client_open(&c, server_addr.sun_path, 1000);
	check(!r == !!c, "a client and an error", n);
	if (r)
		return r;
	parameters = json_pack("{s:i}", "x", 1);
	if (!parameters)
		return -ENOMEM;
	r = query_client_call(c, "a.b.C", parameters, &reply, NULL);
	check(!r == !!reply, "a reply and an error", n);
	json_decref(reply);
	if (r)
		return r;
	r = query_client_call(c, "a.b.C", NULL, &reply, NULL);
	check((r == QUERY_E_REMOTE) == !!reply, "an error without parameters", n);
	json_decref(reply);
	check(r < 0 || !strcmp(query_client_error_text(c), "a.b.D: r"), "another error", n);
	return r < 0 ? r : 0;
}

static int ask_more(unsigned long n)
{
	_cleanup_(query_client_freep) struct query_client *c = NULL;
	bool continues;
	json_t *reply;
	int r;

	r = query_client_open(&c, server_addr.sun_path, 1000);
	if (!r)
		r = query_client_call_more(c, "a.b.C", NULL);
	if (!r) {
		r = query_client_next(c, 1000, &reply, &continues);
		check(!r == !!reply, "a reply and an error", n);
		check(!continues, "goes on", n);
		json_decref(reply);
	}
	return r;
}

/* jansson's "bad syntax" is EPROTO to the client. */
static void torture(int (*scenario)(unsigned long n), unsigned long at_least)
{
	unsigned long n, count;
	int r;

	for (n = 1;; n++) {
		torture_arm(n);
		r = scenario(n);
		count = torture_count();
		if (!r)
			break;
		check(r == -ENOMEM || r == WIRE_E_SYNTAX || r == -EPROTO, "another failure", n);
	}
	torture_arm(0);
	/* none was passed over: what succeeded did so because all allocations did */
	check(count < n, "a failure that nobody told", n);
	check(!scenario(n), "fails unarmed", n);
	check(n - 1 >= at_least, "fewer allocations than expected", n);
}

int main(void)
{
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	pthread_t thread;
	int r;

	snprintf(server_addr.sun_path, sizeof(server_addr.sun_path), "%s-%d", path, (int)getpid());
	unlink(server_addr.sun_path);
	r = bind(listener, (const struct sockaddr *)&server_addr, sizeof(server_addr));
	check(!r && !listen(listener, 8), "no socket", 0);
	check(!pthread_create(&thread, NULL, answer, &listener), "no thread", 0);
	json_set_alloc_funcs(json_malloc, json_free);
	torture(serve, 80);
	torture(put, 15);
	torture(ask, 25);
	torture(ask_more, 10);
	shutdown(listener, SHUT_RDWR);
	pthread_join(thread, NULL);
	close(listener);
	unlink(server_addr.sun_path);
	return EXIT_SUCCESS;
}
