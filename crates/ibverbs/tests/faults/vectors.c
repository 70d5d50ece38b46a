/* Address vectors of hosts that are not there: `vectors ABSENT GONE NOWHERE SGID_INDEX`.
 *
 * Nobody answers for the first one, the second one is remembered but gone, and no way leads to the third.
 */
#include "loop.h"

static uint8_t sgid_index;

static struct ibv_ah_attr vector(const char *text)
{
	struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = sgid_index, .hop_limit = 4}};
	struct in_addr v4;
	if (inet_pton(AF_INET, text, &v4) == 1) {
		attr.grh.dgid.raw[10] = attr.grh.dgid.raw[11] = 0xff;
		memcpy(attr.grh.dgid.raw + 12, &v4, 4);
	} else {
		CHECK(inet_pton(AF_INET6, text, attr.grh.dgid.raw) == 1);
	}
	return attr;
}

static int to_rtr(struct ibv_qp *qp, struct ibv_ah_attr to)
{
	struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = 7, .ah_attr = to,
		.max_dest_rd_atomic = 4, .min_rnr_timer = 1};
	return ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

int main(int argc, char **argv)
{
	struct side side;
	CHECK(argc == 5);
	sgid_index = (uint8_t)atoi(argv[4]);
	open_device();
	make_side(&side, 4096);
	to_init(side.qp);
	struct ibv_ah_attr absent = vector(argv[1]), gone = vector(argv[2]), nowhere = vector(argv[3]);
	SAME(to_rtr(side.qp, absent), ETIMEDOUT);
	SAME(to_rtr(side.qp, nowhere), ENETUNREACH);
	SAME(side.qp->state, IBV_QPS_INIT);
	errno = 0;
	CHECK(!ibv_create_ah(pd, &absent));
	SAME(errno, ETIMEDOUT);
	CHECK(!ibv_create_ah(pd, &nowhere));
	SAME(errno, ENETUNREACH);
	/* The work request is what finds out. */
	struct ibv_ah *ah;
	CHECK(ah = ibv_create_ah(pd, &gone));
	SAME(ibv_destroy_ah(ah), 0);
	SAME(to_rtr(side.qp, gone), 0);
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .timeout = 10, .retry_cnt = 1, .rnr_retry = 1, .max_rd_atomic = 1};
	SAME(ibv_modify_qp(side.qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			IBV_QP_MAX_QP_RD_ATOMIC), 0);
	SAME(post(&side, IBV_WR_SEND, 0, 64, 0, 0), 0);
	SAME(wait_wc(side.cq).status, IBV_WC_RETRY_EXC_ERR);
	destroy_side(&side);
	close_device();
	return 0;
}
