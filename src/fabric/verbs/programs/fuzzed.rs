//! What the ends of a program parse of each other's bytes.

use super::plan::ProgramPlan;
use super::wire::{MESSAGE_WORDS, Message, REQUEST_LEN, Refusal, Ticket};

pub(in crate::fabric::verbs) fn parse(bytes: &[u8]) {
    if let Ok(plan) = ProgramPlan::parse(bytes) {
        assert_eq!(ProgramPlan::parse(&plan.emit()), Ok(plan), "a plan that is not read back");
        assert!(bytes.len() >= REQUEST_LEN);
    }
    if let Some(ticket) = Ticket::parse(bytes) {
        assert_eq!(ticket.emit(), bytes, "a ticket with two forms");
    }
    let _ = Refusal::parse(bytes);
    let mut words = [0; MESSAGE_WORDS];
    let target: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
    target.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    if let Some(message) = Message::parse(words) {
        assert_eq!(message.emit(), words, "a message with two forms");
    }
}

#[cfg(test)]
pub(in crate::fabric::verbs) fn samples() -> Vec<Vec<u8>> {
    use super::plan::Program;
    let ticket = Ticket {
        lid: 1,
        reads_max: 16,
        queue_pair: 17,
        packet_sequence: 3,
        mtu: 4096,
        key: 5,
        gid: *b"0123456789abcdef",
    };
    let message = Message::buffers(7, 8, 9).emit();
    vec![
        ProgramPlan::new(Program::Send, 64).emit().to_vec(),
        ticket.emit(),
        Refusal::Resources.emit().to_vec(),
        bytemuck::cast_slice(&message).to_vec(),
    ]
}
