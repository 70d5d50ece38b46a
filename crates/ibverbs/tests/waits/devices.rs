//! Programs that look at devices, unmodified, on our libraries; and what a forked child sees.

use crate::common;

use std::ffi::OsStr;
use std::net::{Ipv6Addr, TcpListener};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use common::world::{INTERFACE, namespace, tcp_listens};

/// Whether a program of this name is installed.
fn installed(name: &str) -> bool {
    let found = ["/usr/bin", "/usr/sbin"].iter().any(|dir| std::path::Path::new(dir).join(name).exists());
    if !found {
        println!("skipped: no {name} is installed");
    }
    found
}

fn good(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn ibv_devices_lists_the_interfaces_and_loopback_where_it_is_alone_or_named() {
    if !installed("ibv_devices") || !common::world::quiet(namespace().args(["true"])) {
        println!("skipped: no namespaces here");
        return;
    }
    let listed = |links: &str, devices: Option<&str>| {
        let mut command = namespace();
        command.args(["sh", "-c", &format!("{links} && exec ibv_devices")]);
        command.env("LD_LIBRARY_PATH", common::dropin()).env_remove("REMANENCE_DEVICE");
        if let Some(devices) = devices {
            command.env("REMANENCE_DEVICE", devices);
        }
        let text = good(&command.output().expect("it runs"));
        let names = text.lines().filter_map(|line| line.split_whitespace().next()).skip(2);
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(listed("ip link set lo up", None), ["rem_lo"]);
    let both = listed(INTERFACE, None);
    assert!(
        both.iter().any(|name| name == "rem_rv0") && both.iter().all(|name| name != "rem_lo"),
        "{both:?}"
    );
    assert_eq!(listed(INTERFACE, Some("rv0,lo")), ["rem_rv0", "rem_lo"]);
}

#[test]
fn ibv_devinfo_sees_a_roce_v2_port_with_its_addresses() {
    if installed("ibv_devinfo") {
        let text = good(&common::program("ibv_devinfo").arg("-v").output().expect("it runs"));
        for wanted in
            ["rem_lo", "PORT_ACTIVE (4)", "4096 (5)", "link_layer:\t\tEthernet", "::ffff:127.0.0.1, RoCE v2"]
        {
            assert!(text.contains(wanted), "{wanted:?} is not in {text}");
        }
    }
}

#[test]
fn a_setting_that_makes_no_sense_is_told_and_not_guessed() {
    if installed("ibv_devices") {
        for (variable, value) in
            [("REMANENCE_DEVICE", "eth77"), ("REMANENCE_LINK", "tcp"), ("REMANENCE_LOSS", "2")]
        {
            let output = common::program("ibv_devices").env(variable, value).output().expect("it runs");
            assert!(!output.status.success(), "{variable}={value}: {output:?}");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains(&format!("{variable}={value}")), "{said}");
        }
    }
}

/// Programs that link to libmlx5 or libefa: those load only if our private node has every name.
#[test]
fn programs_with_provider_libraries_load() {
    for (name, argument) in
        [("ib_write_lat", "--version"), ("ib_send_bw", "--version"), ("ucx_info", "-v"), ("fi_info", "-l")]
    {
        if installed(name) {
            let output = common::program(name).arg(argument).output().expect("it runs");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(!said.contains("symbol") && !said.contains("version `"), "{name}: {said}");
            assert_ne!(output.status.code(), Some(127), "{name}: {said}");
        }
    }
}

#[test]
fn ucx_opens_the_device() {
    if installed("ucx_info") {
        let output = common::program("ucx_info").arg("-d").output().expect("it runs");
        good(&output);
    }
}

fn run_c(name: &str, source: &str) {
    run_c_often(1, name, source);
}

/// For what only goes wrong right after the start.
fn run_c_often(times: usize, name: &str, source: &str) {
    let dir = common::scratch(name);
    let program = common::compile(&dir, name, source);
    for time in 0..times {
        let output = common::program(&program).output().expect("it runs");
        assert!(output.status.success(), "{name}, {time}: {output:?}");
    }
    std::fs::remove_dir_all(dir).expect("removed");
}

/// On this machine's interfaces, and in a network namespace, of which /sys shows nothing.
#[test]
fn the_view_of_sys_and_dev_says_what_the_libraries_say() {
    let dir = common::scratch("view");
    let program = common::compile(&dir, "view", include_str!("../c/view.c"));
    let mut namespace = namespace();
    namespace.args(["sh", "-c", &format!("{INTERFACE} && exec \"$@\""), "sh"]);
    // The other end of that interface's wire gets its address a while later: the view is a snapshot.
    for (mut command, devices) in [(Command::new("env"), "rem_lo"), (namespace, "rem_rv0,rem_lo")] {
        command.arg(common::rem()).args(["verbs", "--verbose", "--device", devices, "--"]).arg(&program);
        let output = command
            .env("REMANENCE_LIB", common::dropin())
            .env_remove("LD_LIBRARY_PATH")
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        if said.contains("runs without") || said.contains("unshare") {
            println!("skipped: no namespaces here: {said}");
            continue;
        }
        assert!(good(&output).contains("rem_lo looked at"), "{output:?}");
    }
    std::fs::remove_dir_all(dir).expect("removed");
}

/// What the C programs below share.
const HEAD: &str = r#"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <infiniband/verbs.h>
#define CHECK(x) do { if (!(x)) { \
    printf("line %d: %s, errno %d\n", __LINE__, #x, errno); fflush(stdout); _exit(1); } } while (0)
#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)
"#;

#[test]
fn queries_answer_as_the_man_pages_say() {
    run_c(
        "queries",
        &format!(
            "{HEAD}{}",
            r#"
int main(void)
{
    int n = -1;
    struct ibv_device **list = ibv_get_device_list(&n), **again = ibv_get_device_list(NULL);
    CHECK(list && n == 1 && !list[1] && list[0] == again[0]);
    ibv_free_device_list(again);
    struct ibv_context *c = ibv_open_device(list[0]);
    ibv_free_device_list(list);
    CHECK(c);
    CHECK(!strcmp(ibv_get_device_name(c->device), "rem_lo"));
    CHECK(ibv_get_device_guid(c->device) != 0 && ibv_get_device_index(c->device) > 0);

    struct { struct ibv_port_attr a; char canary[16]; } port;
    memset(&port, 0x5a, sizeof port);
    CHECK(ibv_query_port(c, 1, &port.a) == 0 && port.a.state == IBV_PORT_ACTIVE);
    CHECK(port.canary[0] == 0x5a && port.a.gid_tbl_len == 16 && port.a.pkey_tbl_len == 1);
    CHECK(port.a.link_layer == IBV_LINK_LAYER_ETHERNET && port.a.flags & IBV_QPF_GRH_REQUIRED);
    CHECK(ibv_query_port(c, 2, &port.a) == EINVAL);
    /* The symbol behind the inline: 48 bytes and no more. */
    memset(&port, 0x5a, sizeof port);
    CHECK((ibv_query_port)(c, 1, (void *)&port) == 0 && ((char *)&port)[48] == 0x5a);
    CHECK(port.a.max_mtu == IBV_MTU_4096);

    struct ibv_device_attr_ex ex;
    CHECK(ibv_query_device_ex(c, NULL, &ex) == 0 && ex.orig_attr.phys_port_cnt == 1 && ex.phys_port_cnt_ex == 1);

    union ibv_gid gid, zero;
    memset(&zero, 0, sizeof zero);
    CHECK(ibv_query_gid(c, 1, 0, &gid) == 0 && gid.raw[12] == 127);
    CHECK(ibv_query_gid(c, 1, 15, &gid) == 0 && !memcmp(&gid, &zero, sizeof gid));
    errno = 0;
    CHECK(ibv_query_gid(c, 1, 16, &gid) == -1 && ibv_query_gid(c, 2, 0, &gid) == -1 && errno == EINVAL);
    struct ibv_gid_entry entry, table[16];
    CHECK(ibv_query_gid_ex(c, 1, 0, &entry, 0) == 0 && entry.gid_type == IBV_GID_TYPE_ROCE_V2);
    CHECK(entry.ndev_ifindex == 1 && entry.port_num == 1);
    CHECK(ibv_query_gid_ex(c, 1, 15, &entry, 0) == ENODATA && ibv_query_gid_ex(c, 1, 0, &entry, 1) == EOPNOTSUPP);
    ssize_t entries = ibv_query_gid_table(c, table, 16, 0);
    CHECK(entries >= 1 && table[0].gid.raw[15] == 1);
    CHECK(ibv_query_gid_table(c, table, 0, 0) == -EINVAL);
    uint16_t pkey = 0;
    CHECK(ibv_query_pkey(c, 1, 0, &pkey) == 0 && pkey == 0xffff && ibv_query_pkey(c, 1, 1, &pkey) == -1);
    CHECK(ibv_get_pkey_index(c, 1, 0xffff) == 0 && ibv_get_pkey_index(c, 1, 0x1234) == -1);

    /* What no software device has says so, and is there to be called. */
    errno = 0;
    struct ibv_xrcd_init_attr xrcd = { 0 };
    CHECK(!ibv_open_xrcd(c, &xrcd) && errno == EOPNOTSUPP);
    struct ibv_alloc_dm_attr dm = { .length = 64 };
    errno = 0;
    CHECK(!ibv_alloc_dm(c, &dm) && errno == EOPNOTSUPP);
    errno = 0;
    CHECK(!ibv_import_device(0) && errno == EOPNOTSUPP);
    CHECK(ibv_fork_init() == 0 && ibv_is_fork_initialized() == IBV_FORK_UNNEEDED);
    CHECK(ibv_close_device(c) == 0);
    return 0;
}
"#
        ),
    );
}

#[test]
fn domains_memory_and_addresses_obey_their_rules() {
    run_c(
        "objects",
        &format!(
            "{HEAD}{}",
            r#"
int main(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *c = ibv_open_device(list[0]);
    struct ibv_pd *pd = ibv_alloc_pd(c), *other = ibv_alloc_pd(c);
    CHECK(pd && pd->context == c && other);
    char *buf = malloc(8192);

    struct ibv_mr *mr = ibv_reg_mr(pd, buf + 3, 4097, ALL);
    CHECK(mr && mr->pd == pd && mr->context == c && mr->addr == buf + 3 && mr->length == 4097);
    CHECK(ibv_dealloc_pd(pd) == EBUSY);
    uint32_t lkey = mr->lkey, rkey = mr->rkey;
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE) == 0);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, buf, 100, 0) == 0);
    CHECK(mr->addr == buf && mr->length == 100 && mr->lkey == lkey && mr->rkey == rkey);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, other, NULL, 0, 0) == 0 && mr->pd == other);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 100, 0) == IBV_REREG_MR_ERR_INPUT);
    CHECK(ibv_rereg_mr(mr, 8, NULL, buf, 1, 0) == IBV_REREG_MR_ERR_INPUT);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE)
          == IBV_REREG_MR_ERR_CMD);
    CHECK(ibv_dealloc_pd(other) == EBUSY && ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(other) == 0);

    errno = 0;
    CHECK(!ibv_reg_mr(pd, buf, 4096, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
    errno = 0;
    CHECK(!ibv_reg_mr(pd, buf, 0, ALL) && errno == EINVAL);
    void *hole = mmap(NULL, 65536, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(hole, 65536);
    errno = 0;
    CHECK(!ibv_reg_mr(pd, hole, 4096, ALL) && errno == EFAULT);
    mr = ibv_reg_mr(pd, hole, 4096, ALL | IBV_ACCESS_ON_DEMAND);
    CHECK(mr && ibv_dereg_mr(mr) == 0);
    /* FLUSH: visible, yes; durable, not this memory. */
    mr = ibv_reg_mr(pd, buf, 4096, ALL | 0x100);
    CHECK(mr && ibv_dereg_mr(mr) == 0);
    errno = 0;
    CHECK(!ibv_reg_mr(pd, buf, 4096, ALL | 0x200) && errno == EOPNOTSUPP);
    mr = ibv_reg_mr_iova(pd, buf, 4096, 0x1000, ALL | IBV_ACCESS_RELAXED_ORDERING);
    CHECK(mr && ibv_dereg_mr(mr) == 0);
    errno = 0;
    CHECK(!ibv_reg_dmabuf_mr(pd, 0, 4096, 0, 0, ALL) && errno == EOPNOTSUPP);

    struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1 };
    CHECK(ibv_query_gid(c, 1, 0, &attr.grh.dgid) == 0);
    struct ibv_ah *ah = ibv_create_ah(pd, &attr);
    CHECK(ah && ah->pd == pd && ah->context == c && ibv_dealloc_pd(pd) == EBUSY && ibv_destroy_ah(ah) == 0);
    attr.port_num = 2;
    errno = 0;
    CHECK(!ibv_create_ah(pd, &attr) && errno == EINVAL);
    attr.port_num = 1;
    attr.is_global = 0;
    CHECK(!ibv_create_ah(pd, &attr) && errno == EINVAL);
    attr.is_global = 1;
    attr.grh.sgid_index = 15;
    CHECK(!ibv_create_ah(pd, &attr) && errno == EINVAL);
    attr.grh.sgid_index = 0;
    unsigned char mac[6];
    uint16_t vid;
    CHECK(ibv_resolve_eth_l2_from_gid(c, &attr, mac, &vid) == 0);

    /* An answer to a datagram from ourselves. */
    struct ibv_wc wc = { .wc_flags = IBV_WC_GRH };
    unsigned char grh[40] = { 0 }, head[20] = { 0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, 17, 0, 0,
        127, 0, 0, 1, 127, 0, 0, 1 };
    memcpy(grh + 20, head, 20);
    struct ibv_ah_attr answer;
    CHECK(ibv_init_ah_from_wc(c, 1, &wc, (void *)grh, &answer) == 0);
    CHECK(answer.is_global && answer.grh.sgid_index == 0 && answer.grh.dgid.raw[12] == 127);
    ah = ibv_create_ah_from_wc(pd, &wc, (void *)grh, 1);
    CHECK(ah && ibv_destroy_ah(ah) == 0);

    struct ibv_td_init_attr td_attr = { 0 };
    struct ibv_td *td = ibv_alloc_td(c, &td_attr);
    struct ibv_parent_domain_init_attr parent = { .pd = pd, .td = td };
    struct ibv_pd *child = ibv_alloc_parent_domain(c, &parent);
    CHECK(td && child && ibv_dealloc_pd(pd) == EBUSY && ibv_dealloc_td(td) == EBUSY);
    mr = ibv_reg_mr(child, buf, 4096, ALL);
    CHECK(mr && ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(child) == 0);
    CHECK(ibv_dealloc_pd(pd) == 0 && ibv_dealloc_td(td) == 0);
    CHECK(ibv_close_device(c) == 0);
    return 0;
}
"#
        ),
    );
}

#[test]
fn channels_can_be_polled_and_made_not_to_block() {
    run_c(
        "channels",
        &format!(
            "{HEAD}{}",
            r#"
static struct ibv_cq *cq;
static void *later(void *arg)
{
    (void)arg;
    usleep(100000);
    ibv_ack_cq_events(cq, 1);
    return NULL;
}
int main(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *c = ibv_open_device(list[0]);
    struct ibv_comp_channel *channel = ibv_create_comp_channel(c);
    CHECK(channel && channel->context == c && channel->fd >= 0);
    CHECK(fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK) == 0);
    struct ibv_cq *found;
    void *context;
    errno = 0;
    CHECK(ibv_get_cq_event(channel, &found, &context) == -1 && errno == EAGAIN);
    cq = ibv_create_cq(c, 16, &context, channel, 0);
    CHECK(cq && ibv_destroy_comp_channel(channel) == EBUSY);

    /* A work request that fails at once makes an event. */
    struct ibv_pd *pd = ibv_alloc_pd(c);
    struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR }, init_attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
    CHECK(qp && ibv_req_notify_cq(cq, 0) == 0 && ibv_modify_qp(qp, &error, IBV_QP_STATE) == EINVAL);
    CHECK(!ibv_modify_qp(qp, &init_attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    CHECK(!ibv_modify_qp(qp, &error, IBV_QP_STATE));
    struct pollfd readable = { .fd = channel->fd, .events = POLLIN };
    CHECK(poll(&readable, 1, 0) == 0);
    struct ibv_recv_wr wr = { .wr_id = 7 }, *bad;
    CHECK(ibv_post_recv(qp, &wr, &bad) == 0 && poll(&readable, 1, 1000) == 1);
    CHECK(ibv_get_cq_event(channel, &found, &context) == 0 && found == cq && context == &context);
    CHECK(poll(&readable, 1, 0) == 0);

    /* Destroying waits for the acknowledgement; events that nobody took are nobody's. */
    CHECK(ibv_req_notify_cq(cq, 0) == 0 && ibv_post_recv(qp, &wr, &bad) == 0 && poll(&readable, 1, 1000) == 1);
    CHECK(ibv_destroy_qp(qp) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, later, NULL) == 0);
    CHECK(ibv_destroy_cq(cq) == 0 && poll(&readable, 1, 0) == 0);
    pthread_join(thread, NULL);
    CHECK(ibv_get_cq_event(channel, &found, &context) == -1 && errno == EAGAIN);
    CHECK(ibv_destroy_comp_channel(channel) == 0);

    CHECK(c->async_fd >= 0 && fcntl(c->async_fd, F_SETFL, fcntl(c->async_fd, F_GETFL) | O_NONBLOCK) == 0);
    struct ibv_async_event event;
    errno = 0;
    CHECK(ibv_get_async_event(c, &event) == -1 && errno == EAGAIN);
    CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(c) == 0);
    return 0;
}
"#
        ),
    );
}

/// Two children of a process with an open device exchange a message, while the parent's device goes on working.
#[test]
fn forked_children_open_devices_of_their_own() {
    run_c(
        "forked",
        &format!(
            "{HEAD}{}",
            r#"
struct side { struct ibv_context *c; struct ibv_pd *pd; struct ibv_cq *cq; struct ibv_qp *qp; struct ibv_mr *mr;
    char buf[64]; };
struct name { uint32_t qpn; union ibv_gid gid; };

static struct name open_side(struct side *s)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list && list[0] && (s->c = ibv_open_device(list[0])));
    ibv_free_device_list(list);
    CHECK((s->pd = ibv_alloc_pd(s->c)) && (s->cq = ibv_create_cq(s->c, 16, NULL, NULL, 0)));
    CHECK((s->mr = ibv_reg_mr(s->pd, s->buf, sizeof s->buf, ALL)));
    struct ibv_qp_init_attr init = { .send_cq = s->cq, .recv_cq = s->cq, .qp_type = IBV_QPT_RC,
        .cap = { 4, 4, 1, 1, 0 } };
    CHECK((s->qp = ibv_create_qp(s->pd, &init)));
    struct name name = { .qpn = s->qp->qp_num };
    CHECK(ibv_query_gid(s->c, 1, 0, &name.gid) == 0);
    return name;
}

static void connect_side(struct side *s, struct name peer)
{
    struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL };
    CHECK(!ibv_modify_qp(s->qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    struct ibv_qp_attr r = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer.qpn,
        .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
        .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = peer.gid, .hop_limit = 64 } } };
    CHECK(!ibv_modify_qp(s->qp, &r, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
        | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    struct ibv_qp_attr t = { .qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7,
        .max_rd_atomic = 1 };
    CHECK(!ibv_modify_qp(s->qp, &t, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY
        | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void complete(struct side *s)
{
    struct ibv_wc wc;
    int n;
    while ((n = ibv_poll_cq(s->cq, 1, &wc)) == 0)
        ;
    if (n != 1 || wc.status != IBV_WC_SUCCESS)
        printf("%d completions, the first: %s\n", n, n > 0 ? ibv_wc_status_str(wc.status) : "none");
    CHECK(n == 1 && wc.status == IBV_WC_SUCCESS);
}

static void receive(struct side *s)
{
    struct ibv_sge sge = { (uintptr_t)s->buf, sizeof s->buf, s->mr->lkey };
    struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
    CHECK(ibv_post_recv(s->qp, &wr, &bad) == 0);
}

static void transmit(struct side *s)
{
    struct ibv_sge sge = { (uintptr_t)s->buf, sizeof s->buf, s->mr->lkey };
    struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED },
        *bad;
    CHECK(ibv_post_send(s->qp, &wr, &bad) == 0);
    complete(s);
}

static void close_side(struct side *s)
{
    CHECK(ibv_destroy_qp(s->qp) == 0 && ibv_destroy_cq(s->cq) == 0 && ibv_dereg_mr(s->mr) == 0);
    CHECK(ibv_dealloc_pd(s->pd) == 0 && ibv_close_device(s->c) == 0);
}

static pid_t child(int sends, int in, int out, struct side *parents)
{
    int inherited = parents->c->async_fd;
    CHECK(inherited >= 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid > 0)
        return pid;
    alarm(200);
    /* What belongs to the parent's device is closed. */
    CHECK(fcntl(inherited, F_GETFD) == -1 && parents->c->async_fd == -1);
    static struct side s;
    struct name mine = open_side(&s), peer;
    CHECK(write(out, &mine, sizeof mine) == sizeof mine && read(in, &peer, sizeof peer) == sizeof peer);
    connect_side(&s, peer);
    if (sends) {
        strcpy(s.buf, "from a child");
        transmit(&s);
    } else {
        receive(&s);
        complete(&s);
        CHECK(!strcmp(s.buf, "from a child"));
    }
    close_side(&s);
    /* The parent's objects are dead here: whatever they answer, they answer. */
    struct ibv_wc wc;
    ibv_poll_cq(parents->cq, 1, &wc);
    if (!sends) {
        ibv_destroy_qp(parents->qp);
        ibv_close_device(parents->c);
    }
    _exit(0);
}

int main(void)
{
    static struct side s, t;
    alarm(220);
    struct name a = open_side(&s), b = open_side(&t);
    connect_side(&s, b);
    receive(&s);
    connect_side(&t, a);

    int there[2], back[2], status;
    CHECK(pipe(there) == 0 && pipe(back) == 0);
    pid_t one = child(1, back[0], there[1], &s), two = child(0, there[0], back[1], &s);
    int other;
    CHECK(waitpid(one, &status, 0) == one && waitpid(two, &other, 0) == two);
    if (status || other)
        printf("the sender ended with %#x, the receiver with %#x\n", status, other);
    CHECK(status == 0 && other == 0);

    /* And the parent noticed nothing. */
    strcpy(t.buf, "still here");
    transmit(&t);
    complete(&s);
    CHECK(!strcmp(s.buf, "still here"));
    close_side(&t);
    close_side(&s);
    return 0;
}
"#
        ),
    );
}

/// Threads that open and close devices, while another one forks children that do the same.
#[test]
fn any_thread_may_open_close_and_fork_at_any_time() {
    // Often: what is made on first use could be half made when the child is forked.
    run_c_often(
        30,
        "threads",
        &format!(
            "{HEAD}{}",
            r#"
static void use(void)
{
    static char buf[4096];
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list && list[0]);
    struct ibv_context *c = ibv_open_device(list[0]);
    ibv_free_device_list(list);
    CHECK(c);
    struct ibv_pd *pd = ibv_alloc_pd(c);
    CHECK(pd);
    struct ibv_mr *mr = ibv_reg_mr(pd, buf, sizeof buf, ALL);
    struct ibv_cq *cq = ibv_create_cq(c, 4, NULL, NULL, 0);
    CHECK(mr && cq);
    CHECK(ibv_destroy_cq(cq) == 0 && ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(c) == 0);
}

static void *several(void *arg)
{
    (void)arg;
    for (int i = 0; i < 5; i++)
        use();
    return NULL;
}

int main(void)
{
    pthread_t threads[4];
    alarm(220);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, several, NULL) == 0);
    for (int i = 0; i < 5; i++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            alarm(200);
            use();
            _exit(0);
        }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
"#
        ),
    );
}

/// A TCP port that nobody has. Outside of the range from which the kernel gives ports to those who ask for any.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 20_000 + (std::process::id() % 1_000) as u16 * 10 + n % 2_000;
        if TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).is_ok() {
            return port;
        }
    }
}

/// Both ends of a ping-pong with these settings: what the client says, and the server if it ends by itself.
fn pingpong(arguments: &[&str], settings: &[(&str, &OsStr)], ends: bool) -> (Output, Option<Output>) {
    let port = free_port();
    let end = |server: Option<&str>| {
        let mut command = common::program("ibv_rc_pingpong");
        command.args(["-g", "0", "-p", &port.to_string()]).args(arguments).args(server);
        if settings.iter().any(|s| s.0 == "REMANENCE_LINK") {
            command.env_remove("REMANENCE_DEVICE");
        }
        command.envs(settings.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let mut server = end(None).spawn().expect("it starts");
    while !tcp_listens("self", port) {
        assert!(server.try_wait().expect("our child").is_none(), "the server has ended");
        std::thread::sleep(Duration::from_millis(5));
    }
    let client = end(Some("127.0.0.1")).output().expect("it runs");
    if ends {
        return (client, Some(server.wait_with_output().expect("it ends")));
    }
    // Not SIGKILL: `timeout` hands this one on to the program.
    let killed = Command::new("kill").arg(server.id().to_string()).status();
    assert!(killed.expect("kill").success(), "it still waits");
    let _ = server.wait();
    (client, None)
}

#[test]
fn packets_are_captured_lost_and_delayed_as_the_environment_says() {
    if !installed("ibv_rc_pingpong") {
        return;
    }
    let dir = common::scratch("settings");
    let capture = dir.join("run.pcapng");
    let settings = [("REMANENCE_CAPTURE", capture.as_os_str()), ("REMANENCE_DELAY", OsStr::new("2ms"))];
    let start = Instant::now();
    let (client, server) = pingpong(&["-n", "50", "-s", "1024"], &settings, true);
    assert!(good(&client).contains("50 iters"), "{client:?}");
    good(&server.expect("it ended"));
    assert!(start.elapsed() > Duration::from_millis(200), "50 times there and back, 2 ms each");
    let files: Vec<_> =
        std::fs::read_dir(&dir).expect("listed").map(|file| file.expect("a file").path()).collect();
    assert!(files.contains(&capture) && files.len() >= 2, "two processes write two files: {files:?}");
    for file in files {
        let bytes = std::fs::read(&file).expect("read");
        assert_eq!(bytes[..4], [0x0a, 0x0d, 0x0d, 0x0a], "{} is no pcapng file", file.display());
    }
    std::fs::remove_dir_all(dir).expect("removed");

    let (client, _) = pingpong(&["-n", "5"], &[("REMANENCE_LOSS", OsStr::new("1"))], false);
    let said = String::from_utf8_lossy(&client.stderr);
    assert!(!client.status.success() && said.contains("transport retry counter exceeded"), "{client:?}");
}

#[test]
fn shared_memory_carries_a_program_too() {
    if installed("ibv_rc_pingpong") {
        let (client, server) = pingpong(&["-n", "100", "-c"], &[("REMANENCE_LINK", OsStr::new("shm"))], true);
        good(&client);
        good(&server.expect("it ended"));
    }
}
