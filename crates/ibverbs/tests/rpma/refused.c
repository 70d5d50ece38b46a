/* Connections that do not come to be: nobody listens; the server does not want; and one that does, after both. */
#include "rpma.h"

static void server(const char *addr, const char *port)
{
	struct rpma_ep *ep;
	struct rpma_conn_req *req;
	struct rpma_conn *conn;
	open_peer(addr, 0);
	OK(rpma_ep_listen(peer, addr, port, &ep));
	puts("ready");
	fflush(stdout);
	OK(rpma_ep_next_conn_req(ep, NULL, &req));
	/* To delete a request is to reject it. */
	OK(rpma_conn_req_delete(&req));
	OK(rpma_ep_next_conn_req(ep, NULL, &req));
	OK(rpma_conn_req_connect(&req, NULL, &conn));
	expect_event(conn, RPMA_CONN_ESTABLISHED);
	expect_event(conn, RPMA_CONN_CLOSED);
	OK(rpma_conn_disconnect(conn));
	OK(rpma_conn_delete(&conn));
	OK(rpma_ep_shutdown(&ep));
	OK(rpma_peer_delete(&peer));
	puts("verified");
}

static void refused(const char *addr, const char *port)
{
	struct rpma_conn_req *req;
	struct rpma_conn *conn;
	OK(rpma_conn_req_new(peer, addr, port, NULL, &req));
	OK(rpma_conn_req_connect(&req, NULL, &conn));
	expect_event(conn, RPMA_CONN_REJECTED);
	OK(rpma_conn_delete(&conn));
}

static void client(const char *addr, const char *port)
{
	open_peer(addr, 1);
	refused(addr, "1");
	refused(addr, port);
	struct rpma_conn *conn = connect_to(addr, port, NULL);
	OK(rpma_conn_disconnect(conn));
	expect_event(conn, RPMA_CONN_CLOSED);
	OK(rpma_conn_delete(&conn));
	OK(rpma_peer_delete(&peer));
	puts("verified");
}

int main(int argc, char **argv)
{
	CHECK(argc == 4);
	(strcmp(argv[1], "server") ? client : server)(argv[2], argv[3]);
	return 0;
}
