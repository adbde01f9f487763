//! Two ways to save copies, in one process: plain old data, read in place, and a loan, by which the publisher writes a large
//! value directly into the repository.

use std::error::Error;

use fabricast::{Node, Pod, Raw};
use serde::{Deserialize, Serialize};

const WIDTH: usize = 640;
const HEIGHT: usize = 480;

/// Its memory is its encoding. The serde traits describe the fields to programs that do not know the type.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable, Serialize, Deserialize)]
#[repr(C)]
struct Level {
    price: f64,
    size: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let node = Node::builder().name("loan-example")?.open()?;

    let mut levels = node.state_publisher::<Pod<Level>>("best-bid").open()?;
    let mut watcher = node.state_subscriber::<Pod<Level>>("shm:loan-example/best-bid").open()?;
    levels.publish(&Level { price: 99.5, size: 300 })?;
    let sample = watcher.try_receive_ref()?.ok_or("no level")?;
    // A reference into the subscriber's private memory, checked but not decoded.
    let level: &Level = sample.value()?;
    println!("level {}: {} at {}", sample.meta.sequence, level.size, level.price);

    // Four slots of one frame each: a reader may take as long as three frames to copy one.
    let builder = node.state_publisher::<Raw>("frames").slots(4).payload_len_max(WIDTH * HEIGHT);
    let mut frames = builder.open()?;
    let mut viewer = node.state_subscriber::<Raw>("shm:loan-example/frames").push().open()?;
    for shade in 1..=3_u8 {
        let mut frame = frames.loan();
        for _row in 0..HEIGHT {
            frame.append(&[shade; WIDTH])?;
        }
        frame.commit();
    }
    // A loan that is dropped publishes nothing.
    frames.loan().append(b"half a fra")?;

    let frame = viewer.try_receive_ref()?.ok_or("no frame")?;
    let whole = frame.bytes.len() == WIDTH * HEIGHT && frame.bytes.iter().all(|shade| *shade == 3);
    println!("frame {}: {} bytes, whole: {whole}", frame.meta.sequence, frame.bytes.len());
    if whole { Ok(()) } else { Err("the frame differs from the published one".into()) }
}
