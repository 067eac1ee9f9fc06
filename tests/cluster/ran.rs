//! The operands that ran for a statement, and upper bounds on them.

use serde_json::Value;

/// The operands that ran for a statement, on all workers.
#[derive(Debug, Clone)]
pub(super) struct Ran {
    /// Operands by stage.
    pub(super) stages: Vec<u64>,
    /// The most that ran on one worker.
    pub(super) most: u64,
    pub(super) workers: u64,
    /// Workers that were lost.
    pub(super) lost: u64,
    /// Operands that were assigned again because their chunks were lost.
    pub(super) again: u64,
    /// Operands whose chunks workers that left handed over.
    pub(super) handed_over: u64,
    /// Orders that were given to a second worker.
    pub(super) copies: u64,
}

impl Ran {
    pub(super) fn of(measured: &Value) -> Ran {
        let number = |v: &Value| v.as_u64().unwrap_or_default();
        let list = |v: &Value| v.as_array().cloned().unwrap_or_default();
        let (stages, cluster) = (list(&measured["stages"]), &measured["cluster"]);
        Ran {
            stages: stages.iter().map(|s| number(&s["operands"])).collect(),
            most: list(&cluster["each"]).iter().map(|w| number(&w["operands"])).max().unwrap_or(0),
            workers: number(&cluster["workers"]),
            lost: number(&cluster["lost"]),
            again: number(&cluster["operands_again"]),
            handed_over: number(&cluster["operands_handed_over"]),
            copies: number(&cluster["copies"]),
        }
    }

    pub(super) fn operands(&self) -> u64 {
        self.stages.iter().sum()
    }

    /// Checks the operands that ran after losses against `calm`, a run without losses. Each loss assigns again at most
    /// the operands that one worker had. At most this number of operands run beyond those of the plan. A worker that
    /// comes back may run operands without inputs once more for itself. The inputs of a lost operand may have been
    /// freed when it had run, and are then recomputed from theirs. So a stage may run once more for each loss if
    /// operands of a later stage ran again.
    pub(super) fn is_bounded(&self, calm: &Ran, losses: u64, comes_back: bool) {
        assert!(calm.operands() > 0 && self.stages.len() == calm.stages.len(), "{self:?} {calm:?}");
        assert!(self.again <= losses * calm.most, "{self:?}; without a loss {calm:?}");
        if self.copies > 0 || calm.copies > 0 {
            return;
        }
        let times = losses + u64::from(comes_back);
        let more =
            self.stages.iter().zip(&calm.stages).map(|(ran, calm)| ran.saturating_sub(*calm));
        let more: Vec<u64> = more.collect();
        let last = more.iter().rposition(|more| *more > 0).unwrap_or(0);
        let is_freed = self.again > 0;
        for (stage, (more_now, of)) in more.iter().zip(&calm.stages).enumerate() {
            let of = if is_freed && stage < last { *of.max(&calm.most) } else { calm.most };
            assert!(*more_now <= of * times, "stage {stage}: {self:?}; without a loss {calm:?}");
        }
        if !is_freed {
            let most = calm.operands() + calm.most * times;
            assert!(self.operands() <= most, "{self:?}; without a loss {calm:?}");
        }
    }
}

#[test]
fn a_plan_that_runs_twice_is_out_of_bounds() {
    let ran = |stages: &[u64], again| {
        let (stages, most) = (stages.to_vec(), 16);
        Ran { stages, most, workers: 3, lost: 1, again, handed_over: 0, copies: 0 }
    };
    let calm = ran(&[24, 24, 1], 0);
    // Eight blocks were lost, and are recomputed.
    ran(&[32, 24, 1], 8).is_bounded(&calm, 1, false);
    // Its result was lost, after its inputs and theirs were freed.
    let all_of_one = Ran { most: 18, ..ran(&[16, 1, 1, 1, 1], 0) };
    ran(&[32, 2, 2, 2, 2], 1).is_bounded(&all_of_one, 1, false);
    for twice in [ran(&[48, 24, 1], 8), ran(&[32, 24, 1], 24), ran(&[48, 48, 2], 0)] {
        let is_bounded = || twice.is_bounded(&calm, 1, false);
        assert!(std::panic::catch_unwind(is_bounded).is_err(), "{twice:?}");
    }
    for more in [ran(&[48, 2, 2, 2, 2], 1), ran(&[32, 2, 2, 2, 2], 0)] {
        let is_bounded = || more.is_bounded(&all_of_one, 1, false);
        assert!(std::panic::catch_unwind(is_bounded).is_err(), "{more:?}");
    }
}
