/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one user has of the server. Limits are per user, so that a hundred connections of one count
 * as one: memory of requests and replies, connections, and time.
 *
 * A user without connections is remembered until what it used up is back.
 */
#include "daemon/conn.h"

#include "base/caps.h"
#include "base/clock.h"

void account_refill(struct account *a, uint64_t now)
{
	a->budget_ns += (int64_t)((now - a->refilled_ns) * CAP_QUERY_USER_SHARE / 100);
	a->budget_ns = MIN(a->budget_ns, (int64_t)CAP_QUERY_USER_BURST_NS);
	a->refilled_ns = now;
}

struct account *account_get(struct server *srv, uid_t uid)
{
	struct account **ap = &srv->accounts, *a, *found = NULL;
	uint64_t now = clock_now_ns();

	while ((a = *ap)) {
		account_refill(a, now);
		if (a->uid == uid) {
			found = a;
		} else if (!a->conns && a->budget_ns == (int64_t)CAP_QUERY_USER_BURST_NS) {
			*ap = a->next;
			free(a);
			continue;
		}
		ap = &a->next;
	}
	if (found)
		return found;
	a = calloc(1, sizeof(*a));
	if (!a)
		return NULL;
	*a = (struct account){
		.next = srv->accounts,
		.uid = uid,
		.budget_ns = CAP_QUERY_USER_BURST_NS,
		.refilled_ns = now,
	};
	srv->accounts = a;
	return a;
}
