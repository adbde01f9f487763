//! Conversions to and from C, without a device.

use rdma_sys::{ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_wc, ibv_wr_opcode};

use super::super::work::{self, SendChain};
use super::*;

#[test]
fn a_chain_is_linked_and_ends_and_points_to_its_bytes() {
    let bytes = [1_u8, 2, 3];
    let remote = Remote { address: 0x7000, key: 9 };
    let operations = [
        Operation::WriteInline { bytes: &bytes, remote },
        Operation::SendInline { bytes: &[] },
        Operation::SendInline { bytes: &bytes[1..] },
        Operation::Probe,
    ];
    let mut chain = SendChain::default();
    assert!(chain.link().is_null());
    for (wr_id, operation) in (10..).zip(operations) {
        chain.push(&SendRequest { wr_id, operation, signaled: wr_id == 12 });
    }
    let mut at: *const ibv_send_wr = chain.link();
    let mut seen = Vec::new();
    while !at.is_null() {
        // SAFETY: the chain is filled and not moved, and each link points to a request of it or is null.
        let request = unsafe { &*at };
        // SAFETY: each request points to the piece beside it in the same chain.
        let piece = unsafe { *request.sg_list };
        seen.push((
            request.wr_id,
            request.opcode,
            request.send_flags,
            request.num_sge,
            piece.addr,
            piece.length,
        ));
        at = request.next;
    }
    let (inline, signaled) = (ibv_send_flags::IBV_SEND_INLINE.0, ibv_send_flags::IBV_SEND_SIGNALED.0);
    let solicited = ibv_send_flags::IBV_SEND_SOLICITED.0;
    let (write, send) = (ibv_wr_opcode::IBV_WR_RDMA_WRITE, ibv_wr_opcode::IBV_WR_SEND);
    let at = bytes.as_ptr().addr() as u64;
    assert_eq!(seen.len(), 4);
    assert_eq!(seen[0], (10, write, inline, 1, at, 3));
    assert_eq!((seen[1].0, seen[1].2, seen[1].3), (11, inline | solicited, 0));
    assert_eq!(seen[2], (12, send, inline | signaled | solicited, 1, at + 1, 2));
    assert_eq!(seen[3], (13, write, 0, 0, 0, 0));
}

#[test]
fn only_a_write_has_an_immediate_number() {
    let mut chain = SendChain::default();
    let request = |operation| SendRequest { wr_id: 1, operation, signaled: true };
    chain.push_with_immediate(&request(Operation::Probe), 0x0102_0304);
    // SAFETY: the chain has a request, and is not moved.
    let raw = unsafe { &*chain.link() };
    assert_eq!((raw.opcode, raw.num_sge), (ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM, 0));
    // SAFETY: both variants of the union are numbers of the same size.
    let number = unsafe { raw.imm_data_invalidated_rkey_union.imm_data };
    assert_eq!(number, 0x0102_0304_u32.to_be());
    assert_eq!(raw.send_flags, ibv_send_flags::IBV_SEND_SIGNALED.0, "it is not solicited");
    let refused = std::panic::catch_unwind(|| {
        let mut chain = SendChain::default();
        chain.push_with_immediate(&request(Operation::SendInline { bytes: &[] }), 7);
    });
    assert!(refused.is_err());
}

#[test]
fn a_chain_has_an_end() {
    let operation = Operation::SendInline { bytes: &[] };
    let mut chain = SendChain::default();
    while !chain.is_full() {
        chain.push(&SendRequest { wr_id: 0, operation, signaled: false });
    }
    assert_eq!(chain.len(), CHAIN_LEN_MAX);
    chain.clear();
    assert!(!chain.is_full() && chain.link().is_null());
}

#[test]
#[should_panic(expected = "CapacityError")]
fn a_chain_takes_no_more_than_it_has_room_for() {
    let operation = Operation::SendInline { bytes: &[] };
    let mut chain = SendChain::default();
    for wr_id in (0..).take(CHAIN_LEN_MAX + 1) {
        assert_eq!((wr_id, chain.is_full()), (chain.len() as u64, chain.len() == CHAIN_LEN_MAX));
        chain.push(&SendRequest { wr_id, operation, signaled: false });
    }
}

#[test]
fn requests_before_the_refused_one_were_posted() {
    let none =
        ibv_recv_wr { wr_id: 0, next: std::ptr::null_mut(), sg_list: std::ptr::null_mut(), num_sge: 0 };
    let requests = [none; 5];
    let refused = [0, 3, 4].map(|index| work::posted(requests.as_ptr(), &raw const requests[index]));
    assert_eq!(refused, [0, 3, 4]);
    assert_eq!(work::posted(requests.as_ptr(), std::ptr::null()), 0);
}

#[test]
fn completions_are_read_as_far_as_they_mean_something() {
    // SAFETY: the structure is plain numbers, for which zeros are valid.
    let mut raw: ibv_wc = unsafe { std::mem::zeroed() };
    raw.wr_id = 7;
    raw.byte_len = 100;
    raw.wc_flags = rdma_sys::ibv_wc_flags::IBV_WC_WITH_IMM.0;
    raw.imm_data_invalidated_rkey_union.imm_data = 0x0102_0304_u32.to_be();
    let whole = WorkCompletion::new(&raw);
    assert_eq!((whole.status, whole.byte_len), (Status::Success, 100));
    assert_eq!((whole.immediate, whole.is_numbered), (None, false), "the number of a send means nothing");
    raw.opcode = rdma_sys::ibv_wc_opcode::IBV_WC_RECV;
    let message = WorkCompletion::new(&raw);
    assert_eq!((message.immediate, message.is_numbered), (None, true), "a message is not a write");
    raw.opcode = rdma_sys::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
    assert_eq!(WorkCompletion::new(&raw).immediate, Some(0x0102_0304));
    for (number, status) in [(5, Status::Flushed), (12, Status::RetryExceeded), (999, Status::Other(999))] {
        raw.status = number;
        let failed = WorkCompletion::new(&raw);
        assert_eq!((failed.wr_id, failed.status, failed.byte_len), (7, status, 0));
        assert_eq!((failed.immediate, failed.is_numbered), (None, false));
    }
}

#[test]
fn errors_are_read_in_every_form() {
    assert!(check("f", 0).is_ok());
    for returned in [12, -12] {
        let error = check("f", returned).unwrap_err();
        assert!(error.is_out_of_memory() && !error.is(Errno::NODEV), "{error}");
        assert!(error.to_string().starts_with("f failed: "), "{error}");
    }
}

#[test]
fn every_number_of_an_event_has_a_name() {
    assert!((0..1000).chain([u32::MAX]).all(|number| !context::event_name(number).is_empty()));
    assert_eq!((context::event_name(0), context::event_name(999)), ("CQ error", "unknown"));
}
