(() => {
  const send = window.fetch;
  window.lateAnswers = 0;
  window.fetch = async (address) => {
    const answer = await send(address);
    if (!String(address).endsWith('/log?')) return answer;
    await new Promise((resolve) => setTimeout(resolve, 2000));
    setTimeout(() => { window.lateAnswers += 1; }, 500);
    return answer;
  };
})()
