/* Calls that wait: endpoints, made of names and ports, in two processes; a shared receive queue; who says no. */
#include "cm.h"

#define N 64

static struct rdma_addrinfo *info(const char *port, int flags)
{
	struct rdma_addrinfo hints = {.ai_flags = flags, .ai_port_space = RDMA_PS_TCP}, *res;

	OK(rdma_getaddrinfo(flags & RAI_PASSIVE ? NULL : "localhost", port, &hints, &res));
	CHECK(res->ai_qp_type == IBV_QPT_RC && res->ai_port_space == RDMA_PS_TCP);
	CHECK(flags & RAI_PASSIVE ? res->ai_src_len > 0 : res->ai_dst_len > 0);
	return res;
}

static void names(void)
{
	struct rdma_addrinfo hints = {.ai_flags = RAI_NUMERICHOST, .ai_port_space = RDMA_PS_UDP}, *res;
	struct sockaddr_in src = at("127.0.0.1", 5), dst = at("127.0.0.2", 6);

	OK(rdma_getaddrinfo("127.0.0.1", "7", &hints, &res));
	CHECK(res->ai_family == AF_INET && res->ai_qp_type == IBV_QPT_UD && res->ai_flags == 0 && !res->ai_next);
	CHECK(((struct sockaddr_in *)res->ai_dst_addr)->sin_port == htons(7) && !res->ai_src_addr);
	rdma_freeaddrinfo(res);
	CHECK(rdma_getaddrinfo("no.such.name", "7", &hints, &res) == EAI_NONAME);
	REFUSED(rdma_getaddrinfo(NULL, NULL, NULL, &res), EINVAL);
	OK(rdma_getaddrinfo("::1", "7", NULL, &res));
	CHECK(res->ai_family == AF_INET6 && res->ai_dst_len == sizeof(struct sockaddr_in6));
	rdma_freeaddrinfo(res);
	hints = (struct rdma_addrinfo){.ai_src_addr = SA(src), .ai_src_len = sizeof(src), .ai_qp_type = IBV_QPT_UC,
				       .ai_dst_addr = SA(dst), .ai_dst_len = sizeof(dst)};
	OK(rdma_getaddrinfo(NULL, NULL, &hints, &res));
	CHECK(memcmp(res->ai_src_addr, &src, sizeof(src)) == 0 && memcmp(res->ai_dst_addr, &dst, sizeof(dst)) == 0);
	CHECK(res->ai_src_addr != hints.ai_src_addr && res->ai_qp_type == IBV_QPT_UC);
	rdma_freeaddrinfo(res);
	rdma_freeaddrinfo(NULL);
}

static int client(const char *port, int welcome)
{
	struct rdma_addrinfo *res = info(port, 0);
	struct ibv_qp_init_attr attr = qp_attr(IBV_QPT_RC);
	struct rdma_conn_param param = {.private_data = "from the caller", .private_data_len = 15, .retry_count = 7,
					.responder_resources = 1, .initiator_depth = 1};
	char buffer[N] = "ask";
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	struct ibv_wc wc;

	/* The data of the address goes ahead of the program's. */
	res->ai_connect = strdup("route:");
	res->ai_connect_len = 6;
	OK(rdma_create_ep(&id, res, NULL, &attr));
	CHECK(id->qp && id->channel && id->event->event == RDMA_CM_EVENT_ROUTE_RESOLVED);
	if (!welcome) {
		REFUSED(rdma_connect(id, &param), ECONNREFUSED);
		CHECK(id->event->event == RDMA_CM_EVENT_REJECTED && id->event->status == 28);
		rdma_destroy_ep(id);
		rdma_freeaddrinfo(res);
		return 0;
	}
	mr = rdma_reg_msgs(id, buffer, N);
	OK(rdma_post_recv(id, NULL, buffer + N / 2, N / 2, mr));
	OK(rdma_connect(id, &param));
	CHECK(id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	OK(rdma_post_send(id, NULL, buffer, 4, mr, 0));
	CHECK(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(strcmp(buffer + N / 2, "answer") == 0);
	OK(rdma_disconnect(id));
	CHECK(id->event->event == RDMA_CM_EVENT_DISCONNECTED);
	OK(rdma_dereg_mr(mr));
	rdma_destroy_ep(id);
	rdma_freeaddrinfo(res);
	return 0;
}

static pid_t call(const char *self, int port, int welcome)
{
	char number[16], kind[2] = {'0' + welcome};
	pid_t pid = fork();

	snprintf(number, sizeof(number), "%d", port);
	if (pid == 0) {
		execl(self, self, number, kind, NULL);
		_exit(127);
	}
	return pid;
}

static void ended_well(pid_t pid)
{
	int status;

	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

static void serve(struct rdma_cm_id *id, struct ibv_mr *mr, char *buffer)
{
	struct ibv_wc wc;

	OK(rdma_accept(id, NULL));
	CHECK(id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	CHECK(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.byte_len == 4);
	CHECK(strcmp(buffer, "ask") == 0);
	strcpy(buffer + N / 2, "answer");
	OK(rdma_post_send(id, NULL, buffer + N / 2, 7, mr, 0));
	CHECK(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	OK(rdma_disconnect(id));
	CHECK(id->event->event == RDMA_CM_EVENT_DISCONNECTED);
	OK(rdma_dereg_mr(mr));
	rdma_destroy_ep(id);
}

int main(int argc, char **argv)
{
	struct ibv_qp_init_attr attr = qp_attr(IBV_QPT_RC);
	struct ibv_srq_init_attr srq = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct rdma_addrinfo *res;
	struct rdma_cm_id *listen, *id;
	char buffer[N] = "";
	struct ibv_mr *mr;
	pid_t pid;
	int port;

	if (argc == 3)
		return client(argv[1], argv[2][0] == '1');
	names();
	res = info("0", RAI_PASSIVE);
	OK(rdma_create_ep(&listen, res, NULL, &attr));
	OK(rdma_listen(listen, 2));
	port = ntohs(rdma_get_src_port(listen));

	pid = call(argv[0], port, 1);
	OK(rdma_get_request(listen, &id));
	CHECK(id->qp && id->event && id->event->listen_id == listen && id->channel != listen->channel);
	CHECK(memcmp(id->event->param.conn.private_data, "route:from the caller", 21) == 0);
	mr = rdma_reg_msgs(id, buffer, N);
	OK(rdma_post_recv(id, NULL, buffer, N / 2, mr));
	serve(id, mr, buffer);
	ended_well(pid);

	pid = call(argv[0], port, 0);
	OK(rdma_get_request(listen, &id));
	OK(rdma_reject(id, NULL, 0));
	rdma_destroy_ep(id);
	ended_well(pid);
	rdma_destroy_ep(listen);

	/* The same with receives that connections share. */
	OK(rdma_create_ep(&listen, res, NULL, NULL));
	OK(rdma_listen(listen, 2));
	pid = call(argv[0], ntohs(rdma_get_src_port(listen)), 1);
	OK(rdma_get_request(listen, &id));
	CHECK(!id->qp);
	OK(rdma_create_srq(id, NULL, &srq));
	OK(rdma_create_qp(id, NULL, &attr));
	CHECK(id->qp->srq == id->srq && attr.srq == id->srq);
	mr = rdma_reg_msgs(id, buffer, N);
	OK(rdma_post_recv(id, NULL, buffer, N / 2, mr));
	serve(id, mr, buffer);
	ended_well(pid);
	rdma_destroy_ep(listen);
	rdma_freeaddrinfo(res);
	return 0;
}
