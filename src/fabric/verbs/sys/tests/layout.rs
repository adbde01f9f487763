//! Compares the structures and constants of the bindings, and those declared here, with the C headers.

use std::io::Write;
use std::mem::offset_of;
use std::process::{Command, Stdio};

use rustix::net::addr::SocketAddrStorage;

use super::super::{context, manager};

/// Expressions in C, and their values here.
type Facts = Vec<(&'static str, u64)>;

/// For each structure its size and the offsets of fields, some of which have no name, or another one, in C.
macro_rules! structures {
    ($($c:literal $rust:ty: $($($field:ident).+ $(= $c_field:literal)?),+;)+) => {
        vec![$(
            (concat!("sizeof(", $c, ")"), size_of::<$rust>() as u64),
            $((structures!(@offset $c, $($field).+ $(= $c_field)?), offset_of!($rust, $($field).+) as u64),)+
        )+]
    };
    (@offset $c:literal, $($field:ident).+) => { concat!("offsetof(", $c, ", ", stringify!($($field).+), ")") };
    (@offset $c:literal, $($field:ident).+ = $c_field:literal) => { concat!("offsetof(", $c, ", ", $c_field, ")") };
}

/// Constants with the same name in C; flags are numbers in a type, events a type of their own.
macro_rules! constants {
    ($($place:path $([$form:tt])?: $($name:ident),+;)+) => {
        [$(constants!(@of $place $([$form])?: $($name),+)),+].concat()
    };
    (@of $place:path: $($name:ident),+) => {{
        use $place as names;
        vec![$((stringify!($name), u64::from(names::$name))),+]
    }};
    (@of $place:path [flags]: $($name:ident),+) => {{
        use $place as names;
        vec![$((stringify!($name), u64::from(names::$name.0))),+]
    }};
    (@of $place:path [event]: $($name:ident),+) => {{
        use $place as names;
        vec![$((stringify!($name), names::$name as u64)),+]
    }};
}

fn structures_of_queues() -> Facts {
    structures! {
        "struct ibv_sge" rdma_sys::ibv_sge: addr, length, lkey;
        "struct ibv_send_wr" rdma_sys::ibv_send_wr: wr_id, next, sg_list, num_sge, opcode, send_flags,
            imm_data_invalidated_rkey_union = "imm_data", wr, wr.rdma.remote_addr, wr.rdma.rkey, wr.ud.ah,
            wr.ud.remote_qpn, wr.ud.remote_qkey;
        "struct ibv_recv_wr" rdma_sys::ibv_recv_wr: wr_id, next, sg_list, num_sge;
        "struct ibv_wc" rdma_sys::ibv_wc: wr_id, status, opcode, vendor_err, byte_len,
            imm_data_invalidated_rkey_union = "imm_data", qp_num, src_qp, wc_flags, pkey_index, slid, sl,
            dlid_path_bits;
        "struct ibv_mr" rdma_sys::ibv_mr: context, pd, addr, length, handle, lkey, rkey;
        "struct ibv_pd" rdma_sys::ibv_pd: context, handle;
        "struct ibv_comp_channel" rdma_sys::ibv_comp_channel: context, fd, refcnt;
        "struct ibv_cq" rdma_sys::ibv_cq: context, channel, cq_context, handle, cqe;
        "struct ibv_qp" rdma_sys::ibv_qp: context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num,
            state, qp_type, events_completed;
        "struct ibv_context" rdma_sys::ibv_context: device, ops, ops.poll_cq, ops.req_notify_cq,
            ops.post_send, ops.post_recv, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat;
        "struct ibv_qp_cap" rdma_sys::ibv_qp_cap: max_send_wr, max_recv_wr, max_send_sge, max_recv_sge,
            max_inline_data;
        "struct ibv_qp_init_attr" rdma_sys::ibv_qp_init_attr: qp_context, send_cq, recv_cq, srq, cap,
            qp_type, sq_sig_all;
        "struct ibv_qp_attr" rdma_sys::ibv_qp_attr: qp_state, cur_qp_state, path_mtu, path_mig_state, qkey,
            rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index,
            alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic,
            min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit;
        "struct ibv_ah_attr" rdma_sys::ibv_ah_attr: grh, grh.dgid, grh.flow_label, grh.sgid_index,
            grh.hop_limit, grh.traffic_class, dlid, sl, src_path_bits, static_rate, is_global, port_num;
    }
}

fn structures_of_devices() -> Facts {
    structures! {
        "struct ibv_device_attr" rdma_sys::ibv_device_attr: fw_ver, max_mr_size, max_qp, max_qp_wr, max_sge,
            max_cq, max_cqe, max_qp_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, atomic_cap, max_pkeys,
            phys_port_cnt;
        "struct ibv_port_attr" rdma_sys::ibv_port_attr: state, max_mtu, active_mtu, gid_tbl_len,
            port_cap_flags, max_msg_sz, pkey_tbl_len, lid, sm_lid, active_width, phys_state, link_layer,
            flags, port_cap_flags2;
        "struct ibv_gid_entry" context::RawGid: gid, gid_index, port_num, gid_type, ndev_ifindex;
        "struct ibv_async_event" context::RawAsyncEvent: element, event_type;
    }
}

fn structures_of_connections() -> Facts {
    structures! {
        "struct rdma_event_channel" rdma_sys::rdma_event_channel: fd;
        "struct rdma_cm_id" rdma_sys::rdma_cm_id: verbs, channel, context, qp, route, ps, port_num, event,
            send_cq_channel, send_cq, recv_cq_channel, recv_cq, srq, pd, qp_type;
        "struct rdma_route" rdma_sys::rdma_route: addr, path_rec, num_paths;
        "struct rdma_addr" rdma_sys::rdma_addr: src_addr_union = "src_addr", dst_addr_union = "dst_addr",
            addr;
        "struct rdma_conn_param" rdma_sys::rdma_conn_param: private_data, private_data_len,
            responder_resources, initiator_depth, flow_control, retry_count, rnr_retry_count, srq, qp_num;
        "struct rdma_ud_param" rdma_sys::rdma_ud_param: private_data, private_data_len, ah_attr, qp_num, qkey;
        "struct rdma_cm_join_mc_attr_ex" rdma_sys::rdma_cm_join_mc_attr_ex: comp_mask, join_flags, addr;
        "struct rdma_cm_event" rdma_sys::rdma_cm_event: id, listen_id, event, status, param, param.conn,
            param.ud;
    }
}

fn constants_of_verbs() -> Facts {
    constants! {
        rdma_sys::ibv_wr_opcode: IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND;
        rdma_sys::ibv_wc_opcode: IBV_WC_RECV, IBV_WC_RECV_RDMA_WITH_IMM;
        rdma_sys::ibv_wc_status: IBV_WC_SUCCESS, IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_QP_OP_ERR,
            IBV_WC_LOC_PROT_ERR, IBV_WC_WR_FLUSH_ERR, IBV_WC_MW_BIND_ERR, IBV_WC_BAD_RESP_ERR,
            IBV_WC_LOC_ACCESS_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_OP_ERR,
            IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR;
        rdma_sys::ibv_qp_state: IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_SQD,
            IBV_QPS_SQE, IBV_QPS_ERR;
        rdma_sys::ibv_qp_type: IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD;
        rdma_sys::ibv_port_state: IBV_PORT_DOWN, IBV_PORT_INIT, IBV_PORT_ARMED, IBV_PORT_ACTIVE,
            IBV_PORT_ACTIVE_DEFER;
        rdma_sys::ibv_mtu: IBV_MTU_256, IBV_MTU_512, IBV_MTU_1024, IBV_MTU_2048, IBV_MTU_4096;
        rdma_sys: IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2;
        rdma_sys::ibv_send_flags [flags]: IBV_SEND_FENCE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED,
            IBV_SEND_INLINE;
        rdma_sys::ibv_wc_flags [flags]: IBV_WC_GRH, IBV_WC_WITH_IMM;
        rdma_sys::ibv_access_flags [flags]: IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE,
            IBV_ACCESS_REMOTE_READ;
        rdma_sys::ibv_qp_attr_mask [flags]: IBV_QP_STATE, IBV_QP_ACCESS_FLAGS, IBV_QP_PKEY_INDEX,
            IBV_QP_PORT, IBV_QP_AV, IBV_QP_PATH_MTU, IBV_QP_DEST_QPN, IBV_QP_RQ_PSN,
            IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_SQ_PSN, IBV_QP_TIMEOUT,
            IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_QKEY;
    }
}

fn constants_of_events() -> Facts {
    constants! {
        rdma_sys::rdma_port_space: RDMA_PS_TCP, RDMA_PS_UDP;
        rdma_sys::rdma_cm_join_mc_attr_mask [flags]: RDMA_CM_JOIN_MC_ATTR_ADDRESS,
            RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
        rdma_sys::rdma_cm_mc_join_flags [flags]: RDMA_MC_JOIN_FLAG_FULLMEMBER,
            RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
        rdma_sys::rdma_cm_event_type: RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ADDR_ERROR,
            RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_ROUTE_ERROR, RDMA_CM_EVENT_CONNECT_REQUEST,
            RDMA_CM_EVENT_CONNECT_RESPONSE, RDMA_CM_EVENT_CONNECT_ERROR, RDMA_CM_EVENT_UNREACHABLE,
            RDMA_CM_EVENT_REJECTED, RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_DISCONNECTED,
            RDMA_CM_EVENT_DEVICE_REMOVAL, RDMA_CM_EVENT_MULTICAST_JOIN, RDMA_CM_EVENT_MULTICAST_ERROR,
            RDMA_CM_EVENT_ADDR_CHANGE, RDMA_CM_EVENT_TIMEWAIT_EXIT;
        rdma_sys::ibv_event_type [event]: IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR,
            IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_COMM_EST, IBV_EVENT_DEVICE_FATAL, IBV_EVENT_PORT_ACTIVE,
            IBV_EVENT_PORT_ERR, IBV_EVENT_GID_CHANGE;
    }
}

/// Declared here, because the bindings lack them.
fn own_declarations() -> Facts {
    let options = [
        ("RDMA_OPTION_ID", manager::OPTION_ID),
        ("RDMA_OPTION_ID_ACK_TIMEOUT", manager::OPTION_ID_ACK_TIMEOUT),
    ];
    let mut facts: Facts = options.map(|(name, value)| (name, u64::try_from(value).unwrap())).into();
    facts.push(("IBV_LINK_LAYER_INFINIBAND", context::LINK_LAYER_INFINIBAND.into()));
    facts.push(("IBV_LINK_LAYER_ETHERNET", context::LINK_LAYER_ETHERNET.into()));
    facts.push(("sizeof(struct sockaddr_storage)", size_of::<SocketAddrStorage>() as u64));
    facts
}

/// The values of expressions, as a program of C prints them.
fn ask_c(expressions: &[&str]) -> Vec<u64> {
    let prints: String = expressions
        .iter()
        .map(|of| format!("  printf(\"%llu\\n\", (unsigned long long)({of}));\n"))
        .collect();
    // The declaration of the function that the bindings lack must match the header's, or this does not compile.
    let source = format!(
        "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n\
         ssize_t _ibv_query_gid_table(struct ibv_context *, struct ibv_gid_entry *, size_t, uint32_t, size_t);\n\
         int main(void) {{\n{prints}  return 0;\n}}\n"
    );
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("layout");
    let mut compiler = Command::new("cc")
        .args(["-x", "c", "-Werror", "-", "-o"])
        .arg(&program)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    compiler.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
    assert!(compiler.wait().unwrap().success(), "{source}");
    let output = Command::new(program).output().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(|line| line.parse().unwrap()).collect()
}

#[test]
fn bindings_and_declarations_match_the_headers() {
    let facts = [
        structures_of_queues(),
        structures_of_devices(),
        structures_of_connections(),
        constants_of_verbs(),
        constants_of_events(),
        own_declarations(),
    ]
    .concat();
    let expressions: Vec<&str> = facts.iter().map(|(expression, _)| *expression).collect();
    let answers = ask_c(&expressions);
    assert_eq!(answers.len(), facts.len());
    let differ: Vec<_> = facts.iter().zip(&answers).filter(|((_, here), in_c)| here != *in_c).collect();
    assert!(differ.is_empty(), "expression, here, in C: {differ:?}");
    assert!(facts.len() > 250, "{} facts", facts.len());
}
