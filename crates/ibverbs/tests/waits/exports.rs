//! What programs may link to: the names and version nodes of Debian's own libraries, which are the oracle.

use crate::common;

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
    // What came with a version after the installed one is in nodes that it does not have; the private one kept its name
    // for years, though, while names came and went.
    let known = nodes(&oracle);
    let is_known = |node: &String| known.contains(node) && !node.contains("PRIVATE");
    let extra: Vec<_> =
        ours.iter().filter(|symbol| is_known(&symbol.1) && !theirs.contains(*symbol)).collect();
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

/// The names of the private nodes of later releases, as a provider library of one asks for them: all at once, when it is
/// loaded.
#[test]
fn providers_of_later_releases_load() {
    let ours = defined(&common::dropin().join("libibverbs.so.1"));
    let of = |node: &str| {
        let names = ours.iter().filter(|symbol| symbol.1 == node).map(|symbol| symbol.0.as_str());
        names.filter(|name| !name.starts_with("verbs_register_driver_")).collect::<BTreeSet<_>>()
    };
    let first = of("IBVERBS_PRIVATE_34");
    assert!(first.len() >= 92 && first.contains("ibv_cmd_create_cq_ex2"), "{first:?}");
    let dir = common::scratch("providers");
    for release in ["34", "57", "59", "64", "65"] {
        let node = format!("IBVERBS_PRIVATE_{release}");
        assert_eq!(of(&node), first, "{node}");
        // What such a library was linked to: the names alone.
        let driver = format!("verbs_register_driver_{release}");
        let functions: Vec<&str> = first
            .iter()
            .copied()
            .filter(|&name| name != "verbs_allow_disassociate_destroy")
            .chain([driver.as_str()])
            .collect();
        let defined: String = functions.iter().map(|name| format!("void {name}(void) {{}}\n")).collect();
        std::fs::write(dir.join("stub.c"), defined + "char verbs_allow_disassociate_destroy;\n")
            .expect("written");
        std::fs::write(dir.join("stub.map"), format!("{node} {{ *; }};\n")).expect("written");
        let declared: String = functions.iter().map(|name| format!("extern void {name}(void);\n")).collect();
        let used = functions.iter().map(|name| format!("{name}, ")).collect::<String>();
        let program = format!(
            "{declared}extern char verbs_allow_disassociate_destroy;\nvoid (*volatile all[])(void) = {{ {used} }};\n\
             int main(void) {{ {driver}(); return all[0] == 0 || verbs_allow_disassociate_destroy; }}\n"
        );
        std::fs::write(dir.join("main.c"), program).expect("written");
        let cc = |args: &[&str]| {
            let done = Command::new("cc").current_dir(&dir).args(args).status();
            assert!(done.expect("a C compiler: apt install gcc").success(), "{node}: {args:?}");
        };
        cc(&[
            "-w",
            "-shared",
            "-fPIC",
            "-Wl,-soname,libibverbs.so.1",
            "-Wl,--version-script=stub.map",
            "-o",
            "stub.so",
            "stub.c",
        ]);
        cc(&["-w", "-fPIC", "-Wl,-z,now", "-o", "main", "main.c", "stub.so"]);
        let output = common::program(dir.join("main")).output().expect("it runs");
        assert!(output.status.success(), "{node}: {output:?}");
    }
    std::fs::remove_dir_all(dir).expect("removed");
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
