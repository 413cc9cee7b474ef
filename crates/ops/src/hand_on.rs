//! How a backend that wraps another hands calls on: one text for all of them.

/// Methods of `impl Backend` that do what another backend does: `hand_on!(this => this.inner; describe, variants, run)`.
///
/// `this` names the wrapper in the expression that gives the other backend, which may be a guard that is taken anew for each
/// call; [`Backend::variants`](crate::Backend::variants) then has to be written out, as its answer outlives the guard. Methods
/// that the wrapper has something to add to are left out of the list and written beside it: the trait has no bodies, so that
/// one in neither place does not compile. The caller depends on `tare_core`.
#[macro_export]
macro_rules! hand_on {
    ($this:ident => $to:expr; $($method:ident),+ $(,)?) => {
        $($crate::hand_on!(@$method $this $to);)+
    };
    (@describe $this:ident $to:expr) => {
        fn describe(&self) -> $crate::BackendInfo {
            let $this = self;
            $to.describe()
        }
    };
    (@variants $this:ident $to:expr) => {
        fn variants(&self) -> &[$crate::Variant] {
            let $this = self;
            $to.variants()
        }
    };
    (@device_bytes $this:ident $to:expr) => {
        fn device_bytes(&self) -> ::tare_core::Reading<u64> {
            let $this = self;
            $to.device_bytes()
        }
    };
    (@pack $this:ident $to:expr) => {
        fn pack(&mut self, weight: &::tare_core::Weight) -> Result<$crate::WeightId, $crate::OpError> {
            let $this = self;
            $to.pack(weight)
        }
    };
    (@alloc_kv $this:ident $to:expr) => {
        fn alloc_kv(
            &mut self,
            shape: $crate::KvShape,
            pages: usize,
            page_tokens: usize,
        ) -> Result<$crate::KvId, $crate::OpError> {
            let $this = self;
            $to.alloc_kv(shape, pages, page_tokens)
        }
    };
    (@free_kv $this:ident $to:expr) => {
        fn free_kv(&mut self, kv: $crate::KvId) -> Result<(), $crate::OpError> {
            let $this = self;
            $to.free_kv(kv)
        }
    };
    (@copy_kv $this:ident $to:expr) => {
        fn copy_kv(&mut self, from: $crate::KvSpan, to: $crate::KvSpan) -> Result<(), $crate::OpError> {
            let $this = self;
            $to.copy_kv(from, to)
        }
    };
    (@read_kv $this:ident $to:expr) => {
        fn read_kv(&mut self, span: $crate::KvSpan) -> Result<Vec<u8>, $crate::OpError> {
            let $this = self;
            $to.read_kv(span)
        }
    };
    (@write_kv $this:ident $to:expr) => {
        fn write_kv(&mut self, span: $crate::KvSpan, bytes: &[u8]) -> Result<(), $crate::OpError> {
            let $this = self;
            $to.write_kv(span, bytes)
        }
    };
    (@rest $this:ident $to:expr) => {
        fn rest(&mut self) {
            let $this = self;
            $to.rest();
        }
    };
    (@benched $this:ident $to:expr) => {
        fn benched(&self) -> ::tare_core::Reading<$crate::Benched> {
            let $this = self;
            $to.benched()
        }
    };
    (@pages $this:ident $to:expr) => {
        fn pages(&self) -> ::tare_core::Reading<::std::collections::BTreeMap<String, ::tare_core::PageUse>> {
            let $this = self;
            $to.pages()
        }
    };
    (@compile $this:ident $to:expr) => {
        fn compile(&mut self, plan: &$crate::ForwardPlan) -> Result<$crate::Executable, $crate::OpError> {
            let $this = self;
            $to.compile(plan)
        }
    };
    (@release $this:ident $to:expr) => {
        fn release(&mut self, exe: $crate::Executable) {
            let $this = self;
            $to.release(exe);
        }
    };
    (@run $this:ident $to:expr) => {
        fn run(
            &mut self,
            exe: $crate::Executable,
            batch: &$crate::Batch,
            out: &mut $crate::StepOutput,
        ) -> Result<(), $crate::OpError> {
            let $this = self;
            $to.run(exe, batch, out)
        }
    };
    (@run_apart $this:ident $to:expr) => {
        fn run_apart(
            &mut self,
            exe: $crate::Executable,
            batch: &$crate::Batch,
            rows: &[usize],
            out: &mut $crate::StepOutput,
            launched: &mut Vec<$crate::Launched>,
        ) -> Result<(), $crate::OpError> {
            let $this = self;
            $to.run_apart(exe, batch, rows, out, launched)
        }
    };
}
