// SPDX-License-Identifier: GPL-2.0

//! Generates the bindings to rdma-core from the installed headers, and links with its libraries.

use std::{env, path::PathBuf};

/// The functions that the verbs layer calls; bindgen adds their types.
const FUNCTIONS: &str = "ibv_(ack_cq_events|alloc_pd|create_comp_channel|create_cq|create_qp|\
    dealloc_pd|dereg_mr|destroy_comp_channel|destroy_cq|destroy_qp|get_cq_event|modify_qp|\
    query_device|reg_mr_iova2|wc_status_str)|\
    rdma_(ack_cm_event|connect|create_event_channel|create_id|destroy_event_channel|destroy_id|\
    disconnect|establish|get_cm_event|init_qp_attr|resolve_addr|resolve_route|set_option)";

/// Constants that do not belong to a type of these functions.
const CONSTANTS: &str = "RDMA_OPTION_.*|IBV_DEVICE_MEM_WINDOW_TYPE_2[AB]";

const TYPES: &str = "ibv_(access_flags|device_cap_flags|qp_attr_mask|send_flags|wc_flags)";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let header = "src/verbs/rdma.h";
    println!("cargo::rerun-if-changed={header}");
    println!("cargo::rustc-link-lib=ibverbs");
    println!("cargo::rustc-link-lib=rdmacm");
    let out = PathBuf::from(env::var("OUT_DIR")?).join("rdma.rs");
    bindgen::Builder::default()
        .header(header)
        .allowlist_function(FUNCTIONS)
        .allowlist_var(CONSTANTS)
        .allowlist_type(TYPES)
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .generate_comments(false)
        .layout_tests(false)
        .derive_debug(false)
        .generate()?
        .write_to_file(out)?;
    Ok(())
}
