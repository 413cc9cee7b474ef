//! The bounded page pool: which pages are free, and how often each of the others is held.

use tare_core::Fault;

use crate::error::CacheError;

/// Page numbers of one pool. The page given back last is given out first, since it is the likeliest to be in cache.
///
/// `live + free = capacity` holds after every call and is checked in release builds too.
#[derive(Clone, Debug)]
pub struct PagePool {
    /// Free pages; the next one to give out is the last.
    free: Vec<u32>,
    /// Holders of each page; 0 means free.
    holders: Vec<u32>,
    live: usize,
    peak: usize,
}

impl PagePool {
    /// A pool of `capacity` free pages.
    pub fn new(capacity: u32) -> Self {
        Self { free: (0..capacity).rev().collect(), holders: vec![0; capacity as usize], live: 0, peak: 0 }
    }

    /// Pages in the pool.
    pub fn capacity(&self) -> usize {
        self.holders.len()
    }

    /// Pages that somebody holds.
    pub fn live(&self) -> usize {
        self.live
    }

    /// The most pages that were ever held at once.
    pub fn peak(&self) -> usize {
        self.peak
    }

    /// Pages that nobody holds.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Whether `wanted` pages could be taken now.
    ///
    /// # Errors
    /// [`CacheError::OutOfPages`] when they could not.
    pub fn check_free(&self, wanted: usize) -> Result<(), CacheError> {
        let free = self.free();
        if wanted <= free { Ok(()) } else { Err(CacheError::OutOfPages { wanted, free, capacity: self.capacity() }) }
    }

    /// Moves `count` pages to the end of `table`, or changes nothing.
    ///
    /// # Errors
    /// [`CacheError::OutOfPages`] when fewer are free.
    pub fn take(&mut self, count: usize, table: &mut Vec<u32>) -> Result<(), CacheError> {
        self.check_free(count)?;
        for page in self.free.drain(self.free.len() - count..).rev() {
            self.holders[page as usize] = 1;
            table.push(page);
        }
        self.live += count;
        self.peak = self.peak.max(self.live);
        self.conserve()
    }

    /// One more holder of a page that is already held: the same prefix in two sequences.
    ///
    /// # Errors
    /// [`CacheError::Pages`] when the page is unknown or free.
    pub fn share(&mut self, page: u32) -> Result<(), CacheError> {
        *self.held(page)? += 1;
        Ok(())
    }

    /// One holder less; the page is free when it was the last.
    ///
    /// # Errors
    /// [`CacheError::Pages`] when the page is unknown or already free.
    pub fn give_back(&mut self, page: u32) -> Result<(), CacheError> {
        let holders = self.held(page)?;
        *holders -= 1;
        if *holders == 0 {
            self.free.push(page);
            self.live -= 1;
        }
        self.conserve()
    }

    fn held(&mut self, page: u32) -> Result<&mut u32, CacheError> {
        let capacity = self.holders.len();
        match self.holders.get_mut(page as usize) {
            None => Err(fault(format!("page below {capacity}"), page.to_string())),
            Some(0) => Err(fault("a page that is held".into(), format!("page {page}, which is free"))),
            Some(holders) => Ok(holders),
        }
    }

    fn conserve(&self) -> Result<(), CacheError> {
        let (live, free, capacity) = (self.live, self.free.len(), self.holders.len());
        if live + free == capacity {
            return Ok(());
        }
        Err(fault(format!("live + free = {capacity}"), format!("{live} + {free}")))
    }
}

fn fault(expected: String, found: String) -> CacheError {
    CacheError::Pages(Fault::new("page pool", expected, found).remedy("this is a defect of tare: please report it"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn all_or_nothing_and_last_in_first_out() {
        let mut pool = PagePool::new(4);
        let mut table = Vec::new();
        pool.take(3, &mut table).unwrap();
        assert_eq!(table, [0, 1, 2]);
        assert!(matches!(pool.take(2, &mut table), Err(CacheError::OutOfPages { wanted: 2, free: 1, capacity: 4 })));
        assert_eq!((table.len(), pool.live(), pool.free()), (3, 3, 1));
        pool.give_back(1).unwrap();
        pool.take(1, &mut table).unwrap();
        assert_eq!(table, [0, 1, 2, 1]);
        assert_eq!(pool.peak(), 3);
    }

    #[test]
    fn a_shared_page_is_free_when_its_last_holder_leaves() {
        let mut pool = PagePool::new(1);
        pool.take(1, &mut Vec::new()).unwrap();
        pool.share(0).unwrap();
        pool.give_back(0).unwrap();
        assert_eq!(pool.free(), 0);
        pool.give_back(0).unwrap();
        assert_eq!(pool.free(), 1);
    }

    #[test]
    fn unknown_and_double_frees_are_errors_and_change_nothing() {
        let mut pool = PagePool::new(2);
        for page in [0, 2, 99] {
            assert!(matches!(pool.give_back(page), Err(CacheError::Pages(_))), "page {page}");
            assert!(matches!(pool.share(page), Err(CacheError::Pages(_))), "page {page}");
        }
        assert_eq!((pool.live(), pool.free()), (0, 2));
    }

    proptest! {
        /// Against the plain model of a pool: how often each page is held.
        #[test]
        fn no_page_is_lost_or_given_twice(ops in prop::collection::vec((0u8..3, 0usize..6), 1..400)) {
            let mut pool = PagePool::new(8);
            let mut held: Vec<u32> = Vec::new();
            for (op, n) in ops {
                match op {
                    0 => {
                        let before = held.len();
                        if pool.take(n, &mut held).is_ok() {
                            let fresh = &held[before..];
                            prop_assert!(fresh.iter().all(|p| !held[..before].contains(p)));
                        } else {
                            prop_assert_eq!(held.len(), before);
                        }
                    }
                    1 if !held.is_empty() => pool.give_back(held.swap_remove(n % held.len())).unwrap(),
                    2 if !held.is_empty() => {
                        let page = held[n % held.len()];
                        pool.share(page).unwrap();
                        held.push(page);
                    }
                    _ => {}
                }
                let mut distinct = held.clone();
                distinct.sort_unstable();
                distinct.dedup();
                prop_assert_eq!(pool.live(), distinct.len());
                prop_assert_eq!(pool.live() + pool.free(), 8);
            }
        }
    }
}
