//! Room for the step memory of a program: pieces that no stage wants at once lie in the same bytes, and programs that never
//! run at once in the same memory.
//!
//! A program is built twice. The first time, on no memory, shows which stages touch each piece; the second time every piece
//! has its place. Time is counted in meetings of the workers: between two of them stages may run into each other, so that
//! pieces which are wanted there may not share, in whatever order their stages come.

use std::ops::RangeInclusive;
use std::sync::Arc;

use tare_ops::OpError;

use crate::kv::out_of_memory;
use crate::memory::Memory;

/// With whom a piece may share its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// With other rows of F32. A part of a program that is run by itself finds numbers where it looks for numbers, whoever
    /// has written them.
    Numbers,
    /// With other rows in tiles of BF16, for the same reason.
    Tiles,
    /// With other rows in integers.
    Codes,
    /// With nobody: what nobody writes in it must stay 0.
    Nobody,
}

/// The bytes of an [`Arenas`]: numbers, tiles and codes.
type Sizes = [usize; 3];

/// Where pieces begin.
const ALIGN: usize = 4096;

/// Step memory that programs share: what one left there is of no use to the next.
#[derive(Clone, Debug)]
pub struct Arenas([Arc<Memory>; 3]);

impl Arenas {
    /// Those of `before` where they are large enough, else new ones.
    fn fitting(before: Option<&Self>, sizes: Sizes) -> Result<Self, OpError> {
        let fit = |i: usize| match before {
            Some(Self(arenas)) if arenas[i].len() >= sizes[i] => Ok(Arc::clone(&arenas[i])),
            _ => arena(sizes[i]).map(Arc::new),
        };
        Ok(Self([fit(0)?, fit(1)?, fit(2)?]))
    }

    /// The larger of both, by all their bytes.
    pub fn larger<'a>(a: &'a Self, b: &'a Self) -> &'a Self {
        if a.bytes() >= b.bytes() { a } else { b }
    }

    /// Bytes of all of it.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(|memory| memory.len()).sum()
    }

    /// All of it.
    pub fn memory(&self) -> impl Iterator<Item = &Memory> {
        self.0.iter().map(|memory| &**memory)
    }
}

/// The largest arena that is filled where debug assertions are on: those of small models, of which tests know every number.
/// Of a large one most would be in memory for nothing.
const FILLED: usize = 8 << 20;

/// Memory for an arena. In builds with debug assertions it is filled with NaN first, so that a read of what no stage of the
/// step has written shows.
fn arena(bytes: usize) -> Result<Memory, OpError> {
    let memory = step_memory(bytes)?;
    if cfg!(debug_assertions) && bytes <= FILLED {
        // SAFETY: the memory was just made and has this length.
        unsafe { std::ptr::write_bytes(memory.as_ptr::<u8>(), 0xff, bytes) };
    }
    Ok(memory)
}

fn step_memory(bytes: usize) -> Result<Memory, OpError> {
    Memory::zeroed(bytes).ok_or_else(|| out_of_memory("a step buffer", bytes))
}

/// A piece of step memory: a handle of the room that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece(usize);

#[derive(Debug)]
struct Asked {
    share: Share,
    bytes: usize,
    /// From each time it is written anew to the last time it is read before the next, in meetings.
    lives: Vec<RangeInclusive<usize>>,
}

impl Asked {
    fn meets(&self, other: &Self) -> bool {
        let together =
            |a: &RangeInclusive<usize>| other.lives.iter().any(|b| a.start() <= b.end() && b.start() <= a.end());
        self.lives.iter().any(together)
    }
}

/// Where the pieces of a program lie: see the module.
#[derive(Debug, Default)]
pub struct Room {
    asked: Vec<Asked>,
    /// Meetings so far.
    meetings: usize,
    places: Option<Places>,
}

#[derive(Debug)]
struct Places {
    at: Vec<usize>,
    arenas: Arenas,
    /// Memory of pieces that share with nobody.
    own: Vec<Memory>,
}

impl Room {
    /// A piece of `bytes`, and where it begins: while nothing has its place, nowhere that may be touched.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn piece(&mut self, share: Share, bytes: usize) -> Result<(Piece, *mut u8), OpError> {
        let piece = Piece(self.asked.len());
        self.asked.push(Asked { share, bytes, lives: Vec::new() });
        let Some(places) = &mut self.places else { return Ok((piece, std::ptr::dangling_mut::<u8>())) };
        let arena = match share {
            Share::Numbers => &places.arenas.0[0],
            Share::Tiles => &places.arenas.0[1],
            Share::Codes => &places.arenas.0[2],
            Share::Nobody => {
                let own = step_memory(bytes)?;
                let at = own.as_ptr();
                places.own.push(own);
                return Ok((piece, at));
            }
        };
        Ok((piece, arena.as_ptr::<u8>().wrapping_add(places.at[piece.0])))
    }

    /// The workers meet before the next stage.
    pub fn meet(&mut self) {
        self.meetings += 1;
    }

    /// The next stage reads a piece, or some of it.
    pub fn read(&mut self, Piece(i): Piece) {
        let now = self.meetings;
        match self.asked[i].lives.last_mut() {
            Some(life) => *life = *life.start()..=now,
            // Nobody has written it: it is not known since when it holds what is read.
            None => self.asked[i].lives.push(0..=now),
        }
    }

    /// The next stage reads a copy of a piece: what the copy was made of lasts as long. Nothing follows for a piece that nobody
    /// has written.
    ///
    /// A part of a program that is run by itself makes the copy anew for each layer. Had a product that reads the copy written
    /// over the piece, the next layer's would work on that product, and numbers would grow from layer to layer.
    pub fn read_copy(&mut self, piece: Piece) {
        if !self.asked[piece.0].lives.is_empty() {
            self.read(piece);
        }
    }

    /// The next stage writes all of a piece that is read later, and reads none of it.
    pub fn write(&mut self, Piece(i): Piece) {
        self.asked[i].lives.push(self.meetings..=self.meetings);
    }

    /// A room in which every piece of this one has its place, to be asked for in the same order: in memory of `before` where
    /// that is large enough.
    ///
    /// # Errors
    /// When memory runs out.
    pub fn placed(&self, before: Option<&Arenas>) -> Result<Self, OpError> {
        let (at, sizes) = self.places();
        let places = Places { at, arenas: Arenas::fitting(before, sizes)?, own: Vec::new() };
        Ok(Self { places: Some(places), ..Self::default() })
    }

    /// A place for each piece, and the bytes that it takes: the largest first, each as low as it fits.
    fn places(&self) -> (Vec<usize>, Sizes) {
        let (mut at, mut sizes) = (vec![0; self.asked.len()], Sizes::default());
        for (share, size) in [Share::Numbers, Share::Tiles, Share::Codes].into_iter().zip(&mut sizes) {
            let mut rest: Vec<usize> = (0..self.asked.len()).filter(|i| self.asked[*i].share == share).collect();
            rest.sort_by_key(|i| std::cmp::Reverse(self.asked[*i].bytes));
            let mut placed: Vec<usize> = Vec::new();
            for i in rest {
                let piece = &self.asked[i];
                let beside = placed.iter().filter(|p| self.asked[**p].meets(piece));
                let mut taken: Vec<(usize, usize)> = beside.map(|p| (at[*p], at[*p] + self.asked[*p].bytes)).collect();
                taken.sort_unstable();
                let mut from = 0;
                for (start, end) in taken {
                    if from + piece.bytes <= start {
                        break;
                    }
                    from = from.max(end.next_multiple_of(ALIGN));
                }
                at[i] = from;
                *size = (*size).max(from + piece.bytes);
                placed.push(i);
            }
        }
        (at, sizes)
    }

    /// The memory in which the pieces lie: that which is shared, and that which is not. None before they have places.
    pub fn into_memory(self) -> Option<(Arenas, Vec<Memory>)> {
        self.places.map(|places| (places.arenas, places.own))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A piece of `bytes` that is wanted in these meetings.
    fn wanted(room: &mut Room, share: Share, bytes: usize, lives: &[RangeInclusive<usize>]) -> usize {
        let (Piece(i), _) = room.piece(share, bytes).unwrap();
        room.asked[i].lives = lives.to_vec();
        i
    }

    #[test]
    fn pieces_that_are_wanted_together_lie_apart() {
        let mut room = Room::default();
        let share = Share::Numbers;
        let all = [
            wanted(&mut room, share, 5000, &[0..=9]),
            wanted(&mut room, share, 9000, &[0..=2, 6..=7]),
            wanted(&mut room, share, 9000, &[3..=5]),
            wanted(&mut room, share, 4096, &[2..=3]),
            wanted(&mut room, share, 100, &[]),
            wanted(&mut room, Share::Tiles, 700, &[0..=9]),
            wanted(&mut room, Share::Codes, 800, &[3..=9]),
        ];
        let (at, sizes) = room.places();
        for a in all {
            for b in all.into_iter().filter(|b| *b < a) {
                let (x, y) = (&room.asked[a], &room.asked[b]);
                let apart = at[a] + x.bytes <= at[b] || at[b] + y.bytes <= at[a];
                assert!(x.share != y.share || !x.meets(y) || apart, "{a} and {b}: {at:?}");
            }
        }
        assert_eq!((at[1], at[2]), (0, 0), "never wanted at once");
        assert!(at.iter().all(|at| at % ALIGN == 0));
        assert_eq!(sizes, [at[0].max(at[3]) + if at[0] > at[3] { 5000 } else { 4096 }, 700, 800]);
    }

    #[test]
    fn a_life_lasts_from_a_write_to_the_last_read_before_the_next() {
        let mut room = Room::default();
        let (piece, _) = room.piece(Share::Numbers, 8).unwrap();
        let (unwritten, _) = room.piece(Share::Numbers, 8).unwrap();
        let (copied, _) = room.piece(Share::Numbers, 8).unwrap();
        let mut next = |what: fn(&mut Room, Piece), piece| {
            what(&mut room, piece);
            room.meet();
        };
        next(Room::write, piece);
        next(Room::read, piece);
        next(|_, _| {}, piece);
        next(Room::read, piece);
        next(|_, _| {}, piece);
        next(Room::write, piece);
        next(Room::read, unwritten);
        next(Room::read_copy, piece);
        next(Room::read_copy, copied);
        assert_eq!(room.asked[0].lives, [0..=3, 5..=7]);
        assert_eq!(room.asked[1].lives, [0..=6], "since when is not known");
        assert_eq!(room.asked[2].lives, [], "its tiles were made of something else");
    }

    #[test]
    fn a_later_program_takes_the_memory_that_is_there() {
        let room = |bytes| {
            let mut room = Room::default();
            wanted(&mut room, Share::Numbers, bytes, &[0..=0]);
            wanted(&mut room, Share::Tiles, 64, &[0..=0]);
            room
        };
        let arenas = |room: Room| room.into_memory().unwrap().0;
        let large = arenas(room(9000).placed(None).unwrap());
        let small = arenas(room(100).placed(Some(&large)).unwrap());
        assert!(Arc::ptr_eq(&large.0[0], &small.0[0]) && Arc::ptr_eq(&large.0[1], &small.0[1]));
        let larger = arenas(room(9001).placed(Some(&large)).unwrap());
        assert!(!Arc::ptr_eq(&large.0[0], &larger.0[0]) && Arc::ptr_eq(&large.0[1], &larger.0[1]));
        assert_eq!(Arenas::larger(&large, &larger).bytes(), larger.bytes());
        assert!(room(usize::MAX / 2).placed(None).is_err(), "more than any host has");
    }
}
