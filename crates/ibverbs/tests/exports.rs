//! What programs may link to: the names and version nodes of Debian's own libraries, which are the oracle.

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// What a library defines: each name with its node, and whether it is the one that new programs get.
fn defined(library: &Path) -> BTreeSet<(String, String, bool)> {
    let output =
        Command::new("nm").args(["-D", "--defined-only", "--with-symbol-versions"]).arg(library).output();
    let output = output.expect("nm: apt install binutils");
    assert!(output.status.success(), "{}: {output:?}", library.display());
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .filter_map(|symbol| {
            let (name, node) = symbol.split_once('@')?;
            let default = node.starts_with('@');
            Some((name.to_owned(), node.trim_start_matches('@').to_owned(), default))
        })
        .collect()
}

/// The nodes that a library defines, each with its parents, as readelf prints them.
fn nodes(library: &Path) -> BTreeSet<String> {
    let output =
        Command::new("readelf").args(["-VW"]).arg(library).output().expect("readelf: apt install binutils");
    let text = String::from_utf8(output.stdout).expect("text");
    let definitions = text.split("Version definition section").nth(1).expect("there are version nodes");
    let definitions = definitions.split("Version needs section").next().expect("the first part");
    definitions
        .lines()
        .filter_map(|line| line.split_once("Name: ").or_else(|| line.split_once("Parent 1: ")))
        .map(|(_, name)| name.trim().to_owned())
        .collect()
}

/// The installed library, if this machine has one.
fn oracle(soname: &str) -> Option<std::path::PathBuf> {
    let places = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    let found = places.iter().map(|place| Path::new(place).join(soname)).find(|path| path.exists());
    if found.is_none() {
        println!("skipped: no {soname} is installed (apt install rdma-core ibverbs-utils rdmacm-utils)");
    }
    found
}

fn compare(soname: &str) {
    let Some(oracle) = oracle(soname) else { return };
    let (theirs, ours) = (defined(&oracle), defined(&common::dropin().join(soname)));
    // Names that only programs from before 2007 ask for wrap structures of that time. They are no default.
    let missing: Vec<_> = theirs.iter().filter(|symbol| symbol.2 && !ours.contains(*symbol)).collect();
    assert!(missing.is_empty(), "{soname} lacks {missing:?}");
    // What came with a version after the installed one is in nodes that it does not have.
    let known = nodes(&oracle);
    let extra: Vec<_> =
        ours.iter().filter(|symbol| known.contains(&symbol.1) && !theirs.contains(*symbol)).collect();
    assert!(extra.is_empty(), "{soname} offers what rdma-core of this version does not: {extra:?}");
    let lacking: Vec<_> = known.difference(&nodes(&common::dropin().join(soname))).cloned().collect();
    assert!(lacking.is_empty(), "{soname} lacks the nodes {lacking:?}");
}

#[test]
fn libibverbs_offers_what_the_installed_one_does() {
    compare("libibverbs.so.1");
}

#[test]
fn librdmacm_offers_what_the_installed_one_does() {
    compare("librdmacm.so.1");
}

#[test]
fn nothing_of_ours_leaks_out() {
    for soname in ["libibverbs.so.1", "librdmacm.so.1"] {
        for (name, node, _) in defined(&common::dropin().join(soname)) {
            let known = node.starts_with("IBVERBS_") || node.starts_with("RDMACM_");
            assert!(known || node == "REMANENCE_1" && name.starts_with("rem_"), "{soname}: {name}@{node}");
        }
    }
}

/// NCCL and its relatives look functions up with their version, and load the names without a number.
#[test]
fn functions_are_found_by_name_and_version() {
    let source = r#"
#include <dlfcn.h>
#include <stdio.h>
int main(void)
{
    static const char *wanted[][3] = {
        { "libibverbs.so", "ibv_get_device_list", "IBVERBS_1.1" },
        { "libibverbs.so", "ibv_create_comp_channel", "IBVERBS_1.0" },
        { "libibverbs.so", "ibv_reg_mr_iova2", "IBVERBS_1.8" },
        { "libibverbs.so", "ibv_query_qp_data_in_order", "IBVERBS_1.14" },
        { "libibverbs.so", "ibv_query_gid_type", "IBVERBS_PRIVATE_34" },
        { "libibverbs.so", "verbs_allow_disassociate_destroy", "IBVERBS_PRIVATE_34" },
        { "librdmacm.so", "rdma_create_id", "RDMACM_1.0" },
        { "librdmacm.so", "rdma_establish", "RDMACM_1.2" },
        { "librdmacm.so", "rdma_set_local_ece", "RDMACM_1.3" },
        /* Newer than what may be installed. */
        { "libibverbs.so", "ibv_reg_mr_ex", "IBVERBS_1.15" },
        { "libibverbs.so", "ibv_query_port_speed", "IBVERBS_1.16" },
        { "libibverbs.so", "ibv_alloc_buf", "IBVERBS_1.17" },
        { "libibverbs.so", "ibv_create_comp_cntr", "IBVERBS_1.18" },
        { "librdmacm.so", "rdma_resolve_addrinfo", "RDMACM_1.4" },
        { "librdmacm.so", "repoll_create", "RDMACM_1.5" },
    };
    for (unsigned i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *library = dlopen(wanted[i][0], RTLD_NOW);
        if (!library || !dlvsym(library, wanted[i][1], wanted[i][2])) {
            printf("%s %s: %s\n", wanted[i][1], wanted[i][2], dlerror());
            return 1;
        }
        /* A version that it never had is not made up. */
        if (dlvsym(library, wanted[i][1], "IBVERBS_1.5"))
            return 2;
        dlclose(library);
    }
    return 0;
}
"#;
    let dir = common::scratch("versions");
    let output = common::program(common::compile(&dir, "versions", source)).output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    std::fs::remove_dir_all(dir).expect("removed");
}
