//! Up and down: through the lines of a statement, through the history, or through what began as the line does.

use rustyline::{
    Cmd, ConditionalEventHandler, Editor, Event, EventContext, EventHandler, Helper, KeyCode,
    KeyEvent, Modifiers, RepeatCount, history::History,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Binds both keys.
pub(super) fn bind<H: Helper, I: History>(editor: &mut Editor<H, I>) {
    let browsing = Arc::new(AtomicBool::new(false));
    for (key, up) in [(KeyCode::Up, true), (KeyCode::Down, false)] {
        let handler = Arrow { up, browsing: browsing.clone() };
        editor.bind_sequence(
            Event::from(KeyEvent(key, Modifiers::NONE)),
            EventHandler::Conditional(Box::new(handler)),
        );
    }
    editor.bind_sequence(Event::Any, EventHandler::Conditional(Box::new(Other(browsing))));
}

struct Arrow {
    up: bool,
    /// True while the line is one of the history that nobody has touched.
    browsing: Arc<AtomicBool>,
}

impl ConditionalEventHandler for Arrow {
    fn handle(
        &self,
        _: &Event,
        _: RepeatCount,
        _: bool,
        context: &EventContext<'_>,
    ) -> Option<Cmd> {
        let (line, at) = (context.line(), context.pos());
        let beyond = if self.up { &line[..at] } else { &line[at..] };
        if beyond.contains('\n') {
            return None;
        }
        if line.is_empty() {
            self.browsing.store(true, Ordering::Relaxed);
        }
        Some(match (self.browsing.load(Ordering::Relaxed), self.up) {
            (true, true) => Cmd::PreviousHistory,
            (true, false) => Cmd::NextHistory,
            (false, true) => Cmd::HistorySearchBackward,
            (false, false) => Cmd::HistorySearchForward,
        })
    }
}

/// Any other key: what is edited now is the person's own line.
struct Other(Arc<AtomicBool>);

impl ConditionalEventHandler for Other {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, _: &EventContext<'_>) -> Option<Cmd> {
        self.0.store(false, Ordering::Relaxed);
        None
    }
}
